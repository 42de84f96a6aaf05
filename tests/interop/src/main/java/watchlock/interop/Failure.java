package watchlock.interop;

import java.io.IOException;
import java.util.StringJoiner;
import org.redisson.RedissonShutdownException;
import org.redisson.client.RedisAuthRequiredException;
import org.redisson.client.RedisConnectionException;
import org.redisson.client.RedisException;
import org.redisson.client.RedisOutOfMemoryException;
import org.redisson.client.RedisTimeoutException;

/** A request that failed, with the word that the protocol has for it. */
final class Failure extends Exception {
    private static final long serialVersionUID = 1L;

    /** What Redis says when it refuses a command that would be welcome at another time. */
    private static final String REFUSALS =
            "(?s).*\\b(OOM|MISCONF|READONLY|NOREPLICAS|LOADING|BUSY|MASTERDOWN|CLUSTERDOWN)\\b.*";

    private final String kind;

    Failure(String kind, String message) {
        super(message, null, false, false);
        this.kind = kind;
    }

    String kind() {
        return kind;
    }

    static Failure badRequest(String message) {
        return new Failure("bad_request", message);
    }

    static Failure unsupported(String what) {
        return new Failure("unsupported", what);
    }

    static Failure closed() {
        return new Failure("closed", "the client is closed");
    }

    static Failure of(Throwable cause) {
        if (cause instanceof Failure failure) {
            return failure;
        }
        String kind = "other";
        var message = new StringJoiner(", by ");
        for (Throwable at = cause; at != null; at = at.getCause()) {
            kind = kind.equals("other") ? kindOf(at) : kind;
            message.add(at.getClass().getName() + ": " + at.getMessage());
        }
        return new Failure(kind, message.toString());
    }

    private static String kindOf(Throwable cause) {
        if (cause instanceof IllegalMonitorStateException) {
            return "not_owner";
        }
        if (cause instanceof RedissonShutdownException) {
            return "closed";
        }
        if (cause instanceof RedisAuthRequiredException) {
            return "denied";
        }
        if (cause instanceof RedisOutOfMemoryException) {
            return "refused";
        }
        if (cause instanceof RedisTimeoutException || cause instanceof RedisConnectionException
                || cause instanceof IOException) {
            return "unavailable";
        }
        if (cause instanceof RedisException) {
            return kindOfReply(String.valueOf(cause.getMessage()));
        }
        if (cause instanceof UnsupportedOperationException) {
            return "unsupported";
        }
        return cause instanceof IllegalArgumentException ? "invalid" : "other";
    }

    private static String kindOfReply(String message) {
        if (message.contains("WRONGTYPE")) {
            return "wrong_type";
        }
        if (message.matches("(?s).*\\b(NOPERM|NOAUTH|WRONGPASS)\\b.*")) {
            return "denied";
        }
        return message.matches(REFUSALS) ? "refused" : "other";
    }
}
