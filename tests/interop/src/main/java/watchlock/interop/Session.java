package watchlock.interop;

import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** The clients, their owners, and the way from a line to its answer. */
final class Session {
    private static final Set<String> WITH_OWNER = Set.of("lock", "try_lock", "unlock", "is_held", "hold_count");
    private static final Set<String> WITHOUT_OWNER =
            Set.of("force_unlock", "is_locked", "ttl", "bench_pairs", "bench_contended");
    private static final int CLOSE_SECONDS = 5;

    private final Answers answers;
    private final Map<String, Owner> owners = new ConcurrentHashMap<>();
    private final ExecutorService ownerless = Executors.newCachedThreadPool(Session::daemon);
    private final PermitOps permits = new PermitOps();
    private volatile Servers servers;
    private volatile boolean closed;

    Session(Answers answers) {
        this.answers = answers;
    }

    /** Takes one request. Opening and closing are done here and now, so that later ones find them done. */
    void take(Request request) {
        try {
            route(request);
        } catch (Failure failure) {
            answers.failed(failure.kind().equals("bad_request") ? null : request.id(), new Timed(), failure);
        }
    }

    private void route(Request request) throws Failure {
        if (WITH_OWNER.contains(request.op())) {
            Kind kind = Kind.of(request.text("kind"));
            Owner owner = owners.computeIfAbsent(request.text("owner"), Owner::new);
            var of = new Owner.Held(kind, request.name(kind));
            owner.submit(() -> answer(request, timed -> LockOps.owned(owner, of, use(kind), request, timed)));
        } else if (WITHOUT_OWNER.contains(request.op())) {
            Kind kind = Kind.of(request.text("kind"));
            ownerless.submit(() -> answer(request, timed -> LockOps.ownerless(use(kind), kind, request, timed)));
        } else if (PermitOps.OPS.contains(request.op())) {
            submitPermits(request);
        } else if (LatchOps.ALL.contains(request.op())) {
            ownerless.submit(() -> answer(request, timed -> LatchOps.run(use(), request, timed)));
        } else if (request.op().equals("open")) {
            answer(request, timed -> open(request, timed));
        } else if (request.op().equals("shutdown")) {
            answer(request, timed -> timed.call(() -> close(request.flag("release", true))));
        } else {
            throw Failure.unsupported("op " + request.op());
        }
    }

    /** Whoever took permits, an owner only puts its requests in order. */
    private void submitPermits(Request request) throws Failure {
        Runnable task = () -> answer(request, timed -> permits.run(use().client(), request, timed));
        if (request.has("owner")) {
            owners.computeIfAbsent(request.text("owner"), Owner::new).submit(task);
        } else {
            ownerless.submit(task);
        }
    }

    private Map<String, Object> open(Request request, Timed timed) throws Exception {
        if (servers != null) {
            throw Failure.badRequest("already open");
        }
        servers = timed.call(() -> Servers.open(request));
        return Map.of("client_id", servers.id());
    }

    /**
     * Closes the client. Redisson's own shutdown releases nothing: unless that is what is to be seen
     * ({@code release} false), every owner gives back what it holds first, as a program's finally blocks do.
     */
    Map<String, Object> close(boolean release) {
        Servers closing = servers;
        if (closed || closing == null) {
            return Map.of();
        }
        closed = true;
        if (release) {
            var done = new CountDownLatch(owners.size());
            owners.values().forEach(Owner::interruptWait);
            owners.values().forEach(owner -> owner.giveBack(closing, done));
            Owner.await(done, CLOSE_SECONDS);
            permits.giveBack();
        }
        closing.shutdown(CLOSE_SECONDS);
        return Map.of();
    }

    /** Closes the client as Redisson does by itself, and ends what still waits. */
    void end() {
        close(false);
        owners.values().forEach(Owner::interruptWait);
    }

    private Servers use() throws Failure {
        if (closed) {
            throw Failure.closed();
        }
        if (servers == null) {
            throw new Failure("closed", "not open yet");
        }
        return servers;
    }

    private Servers use(Kind kind) throws Failure {
        Servers open = use();
        if (!kind.isOf(open)) {
            throw Failure.unsupported("kind " + kind);
        }
        return open;
    }

    private void answer(Request request, Operation operation) {
        var timed = new Timed();
        try {
            answers.ok(request.id(), timed, new TreeMap<>(operation.run(timed)));
        } catch (Throwable cause) {
            answers.failed(request.id(), timed, closed ? Failure.closed() : Failure.of(cause));
        }
    }

    static Thread daemon(Runnable task) {
        var thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    }

    /** A request being run: it marks its call into the library in the {@link Timed}. */
    private interface Operation {
        Map<String, Object> run(Timed timed) throws Exception;
    }
}
