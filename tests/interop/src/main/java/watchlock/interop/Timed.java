package watchlock.interop;

import java.util.concurrent.Callable;

/** When a call into the library began and ended. On Linux {@code nanoTime} is CLOCK_MONOTONIC, one for all processes. */
final class Timed {
    private long invoked = System.nanoTime();
    private long returned;

    <T> T call(Callable<T> body) throws Exception {
        invoked = System.nanoTime();
        returned = 0;
        try {
            return body.call();
        } finally {
            returned = System.nanoTime();
        }
    }

    long invoked() {
        return invoked;
    }

    long returned() {
        return returned == 0 ? System.nanoTime() : returned;
    }
}
