package watchlock.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** Standard output: one JSON object a line, flushed at once, whole lines whichever thread writes. */
final class Answers {
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    private final PrintStream out;

    Answers(PrintStream out) {
        this.out = out;
    }

    void ok(long id, Timed timed, Map<String, Object> result) {
        Map<String, Object> line = head(id, true, timed);
        line.put("result", result);
        write(line);
    }

    void failed(Long id, Timed timed, Failure failure) {
        Map<String, Object> line = head(id, false, timed);
        line.put("error", Map.of("kind", failure.kind(), "message", String.valueOf(failure.getMessage())));
        write(line);
    }

    private static Map<String, Object> head(Long id, boolean ok, Timed timed) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("ok", ok);
        if (timed != null) {
            line.put("t_inv", timed.invoked());
            line.put("t_ret", timed.returned());
        }
        return line;
    }

    private synchronized void write(Map<String, Object> line) {
        byte[] bytes = (GSON.toJson(line) + "\n").getBytes(StandardCharsets.UTF_8);
        out.write(bytes, 0, bytes.length);
        out.flush();
    }
}
