package watchlock.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.Strictness;
import com.google.gson.TypeAdapter;
import com.google.gson.GsonBuilder;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;

/** One request line. Every getter answers a missing or wrong field with {@link Failure} {@code bad_request}. */
final class Request {
    private static final TypeAdapter<JsonObject> PARSER =
            new GsonBuilder().setStrictness(Strictness.STRICT).create().getAdapter(JsonObject.class);

    private final JsonObject fields;
    private final long id;
    private final String op;

    private Request(JsonObject fields) throws Failure {
        this.fields = fields;
        this.id = number("id");
        this.op = text("op");
    }

    private Request(Request around, JsonObject fields) {
        this.fields = fields;
        this.id = around.id;
        this.op = around.op;
    }

    static Request parse(String line) throws Failure {
        try {
            return new Request(PARSER.fromJson(line));
        } catch (java.io.IOException | JsonParseException | NullPointerException e) {
            throw Failure.badRequest("not a JSON object: " + e.getMessage());
        }
    }

    long id() {
        return id;
    }

    String op() {
        return op;
    }

    boolean has(String field) {
        return fields.has(field) && !fields.get(field).isJsonNull();
    }

    /** The fields of the object that this field is. */
    Request within(String field) throws Failure {
        JsonElement value = fields.get(field);
        if (value == null || !value.isJsonObject()) {
            throw Failure.badRequest("field " + field + ": an object is wanted");
        }
        return new Request(this, value.getAsJsonObject());
    }

    String text(String field) throws Failure {
        JsonElement value = fields.get(field);
        if (value == null || !value.isJsonPrimitive() || !value.getAsJsonPrimitive().isString()) {
            throw Failure.badRequest("field " + field + ": a string is wanted");
        }
        return value.getAsString();
    }

    /** The name of a lock of that kind; several {@link Names} are one. */
    String name(Kind kind) throws Failure {
        if (!kind.isListed()) {
            return text("name");
        }
        return Names.joined(has("name") && fields.get("name").isJsonPrimitive() ? List.of(text("name")) : texts("name"));
    }

    List<String> texts(String field) throws Failure {
        JsonElement value = fields.get(field);
        if (value == null || !value.isJsonArray()) {
            throw Failure.badRequest("field " + field + ": a list of strings is wanted");
        }
        var texts = new ArrayList<String>();
        value.getAsJsonArray().forEach(text -> texts.add(text.getAsString()));
        return texts;
    }

    String text(String field, String otherwise) throws Failure {
        return has(field) ? text(field) : otherwise;
    }

    long number(String field) throws Failure {
        JsonElement value = fields.get(field);
        try {
            if (value != null && value.isJsonPrimitive() && value.getAsJsonPrimitive().isNumber()) {
                return value.getAsBigDecimal().longValueExact();
            }
        } catch (ArithmeticException | NumberFormatException e) {
            // answered below
        }
        throw Failure.badRequest("field " + field + ": a 64-bit integer is wanted");
    }

    OptionalLong optionalNumber(String field) throws Failure {
        return has(field) ? OptionalLong.of(number(field)) : OptionalLong.empty();
    }

    boolean flag(String field, boolean otherwise) {
        return has(field) ? fields.get(field).getAsBoolean() : otherwise;
    }
}
