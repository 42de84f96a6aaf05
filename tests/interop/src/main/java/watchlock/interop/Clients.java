package watchlock.interop;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;

/** Makes the Redisson clients for an {@code open} request: its defaults, apart from what the request says. */
final class Clients {
    private Clients() {}

    /** One; for several independent servers one for each. */
    static List<RedissonClient> open(Request request) throws Failure {
        if (request.flag("cluster", false)) {
            var config = new Config();
            return List.of(create(config, cluster(config, request), request));
        }
        if (request.has("sentinel")) {
            var config = new Config();
            return List.of(create(config, sentinel(config, request.within("sentinel")), request));
        }
        var clients = new ArrayList<RedissonClient>();
        for (String url : request.has("urls") ? request.texts("urls") : List.of(request.text("url"))) {
            var config = new Config();
            clients.add(create(config, server(config, URI.create(url)), request));
        }
        return List.copyOf(clients);
    }

    private static RedissonClient create(Config config, BaseConfig<?> servers, Request request) throws Failure {
        if (request.has("watchdog_ms")) {
            config.setLockWatchdogTimeout(request.number("watchdog_ms"));
        }
        if (request.has("prefix")) {
            setPrefix(servers, request.text("prefix"));
        }
        return Redisson.create(config);
    }

    private static BaseConfig<?> server(Config config, URI url) {
        SingleServerConfig server = config.useSingleServer().setAddress(address(url));
        setCredentials(server, url);
        setDatabase(server, url);
        return server;
    }

    private static BaseConfig<?> cluster(Config config, Request request) throws Failure {
        ClusterServersConfig cluster = config.useClusterServers();
        for (String url : request.texts("urls")) {
            cluster.addNodeAddress(address(URI.create(url)));
            setCredentials(cluster, URI.create(url));
        }
        return cluster;
    }

    private static BaseConfig<?> sentinel(Config config, Request named) throws Failure {
        SentinelServersConfig sentinels = config.useSentinelServers().setMasterName(named.text("service"));
        for (String url : named.texts("urls")) {
            sentinels.addSentinelAddress(address(URI.create(url)));
        }
        return sentinels;
    }

    private static String address(URI url) {
        return url.getScheme() + "://" + url.getHost() + ":" + (url.getPort() < 0 ? 6379 : url.getPort());
    }

    private static void setCredentials(BaseConfig<?> server, URI url) {
        if (url.getUserInfo() == null) {
            return;
        }
        String[] parts = url.getUserInfo().split(":", 2);
        if (!parts[0].isEmpty()) {
            server.setUsername(parts[0]);
        }
        if (parts.length == 2) {
            server.setPassword(parts[1]);
        }
    }

    private static void setDatabase(SingleServerConfig server, URI url) {
        String path = url.getPath() == null ? "" : url.getPath().replaceFirst("^/", "");
        if (!path.isEmpty()) {
            server.setDatabase(Integer.parseInt(path));
        }
    }

    /** The interface NameMapper has moved to another package between 3.x and 4.x, so it is met by its shape alone. */
    private static void setPrefix(BaseConfig<?> server, String prefix) throws Failure {
        try {
            for (Method setter : BaseConfig.class.getMethods()) {
                if (setter.getName().equals("setNameMapper")) {
                    setter.invoke(server, mapper(setter.getParameterTypes()[0], prefix));
                    return;
                }
            }
        } catch (ReflectiveOperationException e) {
            throw Failure.of(e);
        }
        throw Failure.unsupported("this Redisson has no name mapper");
    }

    private static Object mapper(Class<?> type, String prefix) {
        InvocationHandler rules = (self, method, args) -> switch (method.getName()) {
            case "map" -> prefix + args[0];
            case "unmap" -> ((String) args[0]).substring(prefix.length());
            default -> method.invoke(prefix, args);
        };
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, rules);
    }
}
