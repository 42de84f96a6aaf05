package watchlock.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * A process that takes locks through Redisson as JSON lines on standard input ask for, and says what it saw by
 * JSON lines on standard output.
 *
 * <p>A line is read, made into a {@link Request} and handed to the thread that has to run it: the thread of its owner,
 * as Redisson's owners are threads, or a thread of its own when it has none. End of input closes the client.
 */
public final class Peer {
    private Peer() {}

    public static void main(String[] args) throws IOException {
        var session = new Session(new Answers(System.out));
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            session.take(line);
        }
        session.close(true);
        System.exit(0);
    }
}
