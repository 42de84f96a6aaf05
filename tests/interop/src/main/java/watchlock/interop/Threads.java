package watchlock.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntConsumer;

/** Runs a body on several threads and waits for all of them; what one throws is thrown here. */
final class Threads {
    private Threads() {}

    static void runAll(int count, IntConsumer body) throws InterruptedException {
        var failed = new AtomicReference<RuntimeException>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int task = i;
            var thread = new Thread(() -> {
                try {
                    body.accept(task);
                } catch (RuntimeException e) {
                    failed.compareAndSet(null, e);
                }
            });
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failed.get() != null) {
            throw failed.get();
        }
    }
}
