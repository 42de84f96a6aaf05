package watchlock.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A process that takes locks through Redisson as JSON lines on standard input ask for, and says what it saw by
 * JSON lines on standard output.
 *
 * <p>A line is read, made into a {@link Request} and handed to the thread that has to run it: the thread of its owner,
 * as Redisson's owners are threads, or a thread of its own when it has none. End of input closes the client.
 *
 * <p>Requests with a {@code client} are of that client, one of several. {@code end} forgets it, whatever it holds.
 */
public final class Peer {
    private final Answers answers = new Answers(System.out);
    private final Session only = new Session(answers);
    private final Map<Long, OneOfMany> clients = new ConcurrentHashMap<>();

    private Peer() {}

    public static void main(String[] args) throws IOException {
        new Peer().run();
        System.exit(0);
    }

    private void run() throws IOException {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                take(Request.parse(line));
            } catch (Failure failure) {
                answers.failed(null, null, failure);
            }
        }
        only.close(true);
    }

    private void take(Request request) throws Failure {
        if (!request.has("client")) {
            only.take(request);
            return;
        }
        long number = request.number("client");
        if (request.op().equals("end")) {
            OneOfMany ends = clients.remove(number);
            if (ends != null) {
                ends.end();
            }
            answers.ok(request.id(), new Timed(), Map.of());
            return;
        }
        clients.computeIfAbsent(number, of -> new OneOfMany(new Session(answers))).take(request);
    }
}
