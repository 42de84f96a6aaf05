package watchlock.interop;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** A session beside others: its requests are taken in their order, and what one waits for holds up no other session. */
final class OneOfMany {
    private final ExecutorService line = Executors.newSingleThreadExecutor(Session::daemon);
    private final Session session;

    OneOfMany(Session session) {
        this.session = session;
    }

    void take(Request request) {
        line.submit(() -> session.take(request));
    }

    /** Closes the client behind what was sent, and gives nothing back. */
    void end() {
        line.submit(session::end);
        line.shutdown();
    }
}
