//! Sockets to a server.

use std::io;

use futures_util::future::select_ok;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use tokio::net::{TcpStream, lookup_host};

/// A connection to whichever address of `host` takes it first, as redis-rs makes it.
pub(super) async fn tcp(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
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
