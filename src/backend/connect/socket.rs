//! TCP sockets.

use std::io;

use futures_util::future::select_ok;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use tokio::net::{TcpStream, lookup_host};

use crate::host::HostStream;

pub(super) async fn tcp(host: &str, port: u16, settings: &TcpSettings) -> io::Result<HostStream> {
    #[cfg(feature = "__simulation")]
    if let Some(connected) = crate::host::connect(host, port).await {
        return connected;
    }
    let stream = connect(host, port, settings).await?;
    #[cfg(feature = "__simulation")]
    let stream = Box::new(stream);
    Ok(stream)
}

/// Connects to all addresses of `host` at once and takes the first that succeeds, as redis-rs does.
async fn connect(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?;
    let mut connecting = addresses
        .map(|address| Box::pin(TcpStream::connect(address)))
        .peekable();
    if connecting.peek().is_none() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        ));
    }
    let (stream, _others) = select_ok(connecting).await?;
    tune(&stream, settings)?;
    Ok(stream)
}

fn tune(stream: &TcpStream, settings: &TcpSettings) -> io::Result<()> {
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::io::tcp::socket2::TcpKeepalive;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_set_up_as_it_was_asked_for() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let minute = Duration::from_secs(60);
        for asked in [true, false] {
            let mut settings = TcpSettings::default().set_nodelay(asked);
            if asked {
                settings = settings.set_keepalive(TcpKeepalive::new().with_time(minute));
                #[cfg(target_os = "linux")]
                {
                    settings = settings.set_user_timeout(minute);
                }
            }
            // A name may have more addresses than the one that is listened on.
            let stream = connect("localhost", port, &settings).await.unwrap();
            assert_eq!(stream.nodelay().unwrap(), asked);
            let socket = SockRef::from(&stream);
            assert_eq!(socket.keepalive().unwrap(), asked);
            #[cfg(target_os = "linux")]
            assert_eq!(socket.tcp_user_timeout().unwrap(), asked.then_some(minute));
        }
    }

    #[tokio::test]
    async fn where_nobody_listens_is_an_error() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        drop(server);
        assert!(
            tcp("127.0.0.1", port, &TcpSettings::default())
                .await
                .is_err()
        );
    }
}
