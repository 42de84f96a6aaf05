package watchlock.interop;

import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;

/** An owner is a thread: it runs the requests of one label in their order, and holds what they lock. */
final class Owner {
    private final LinkedBlockingQueue<Runnable> queue = new LinkedBlockingQueue<>();
    private final Set<Held> held = new HashSet<>();
    private final Thread thread;
    private volatile boolean waiting;

    /** What an owner may hold: one name may be held as several kinds of lock. */
    record Held(Kind kind, String name) {
        RLock lock(Servers servers) {
            return kind.lock(servers, name);
        }
    }

    Owner(String label) {
        thread = new Thread(this::run, "owner-" + label);
        thread.setDaemon(true);
        thread.start();
    }

    void submit(Runnable task) {
        queue.add(task);
    }

    /** Notes, on the owner's thread, that it may wait now, and that it may hold the lock from now on. */
    void waits(Held of) {
        held.add(of);
        waiting = true;
    }

    void waitsNoMore() {
        waiting = false;
    }

    /** Ends a wait that is going on. */
    void interruptWait() {
        if (waiting) {
            thread.interrupt();
        }
    }

    /** Gives back everything held, after what is queued, and says so on the latch. */
    void giveBack(Servers servers, CountDownLatch done) {
        submit(() -> {
            try {
                Thread.interrupted();
                held.forEach(of -> giveBack(of.lock(servers)));
            } finally {
                done.countDown();
            }
        });
    }

    private static void giveBack(RLock lock) {
        try {
            if (lock instanceof RedissonRedLock) {
                // it never says that there is nothing more to give back
                lock.unlock();
                return;
            }
            while (isHeld(lock)) {
                lock.unlock();
            }
        } catch (IllegalMonitorStateException e) {
            // a RedissonMultiLock says so when it has nothing more to give back
        } catch (RuntimeException e) {
            System.err.println("not given back: " + e);
        }
    }

    private static boolean isHeld(RLock lock) {
        try {
            return lock.isHeldByCurrentThread();
        } catch (UnsupportedOperationException e) {
            return true;
        }
    }

    private void run() {
        while (true) {
            try {
                queue.take().run();
            } catch (InterruptedException e) {
                // meant for a wait that had just ended; the queue goes on
            }
        }
    }

    static boolean await(CountDownLatch done, long seconds) {
        try {
            return done.await(seconds, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        }
    }
}
