package watchlock.interop;

import java.util.Arrays;
import java.util.List;

/** Durations in nanoseconds. Not safe for threads. */
final class Samples {
    private long[] values = new long[1024];
    private int size;

    void add(long nanos) {
        if (size == values.length) {
            values = Arrays.copyOf(values, size * 2);
        }
        values[size++] = nanos;
    }

    int size() {
        return size;
    }

    long quantileUs(double quantile) {
        if (size == 0) {
            return 0;
        }
        long[] sorted = Arrays.copyOf(values, size);
        Arrays.sort(sorted);
        return sorted[(int) Math.min(size - 1L, (long) (size * quantile))] / 1_000;
    }

    static Samples merge(List<Samples> parts) {
        var all = new Samples();
        for (Samples part : parts) {
            for (int i = 0; i < part.size; i++) {
                all.add(part.values[i]);
            }
        }
        return all;
    }
}
