package watchlock.interop;

import com.google.gson.Gson;
import java.util.List;

/** Several names as one text: the list as JSON. */
final class Names {
    private static final Gson GSON = new Gson();

    private Names() {}

    static String joined(List<String> names) {
        return GSON.toJson(names);
    }

    static List<String> list(String joined) {
        return List.of(GSON.fromJson(joined, String[].class));
    }
}
