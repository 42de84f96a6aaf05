//! The proxy's thread: accepts connections, or does not.

use std::net::{Shutdown, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::shared::Shared;
use crate::port;

const BIND_TRIES: usize = 200;

struct Order {
    listen: bool,
    done: Sender<()>,
}

#[derive(Debug)]
pub(super) struct Server {
    port: u16,
    orders: Option<UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(shared: &Arc<Shared>) -> Self {
        let listener = port::listen();
        let port = listener.local_addr().expect("a bound listener").port();
        let (orders, received) = unbounded_channel();
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || run(&shared, listener, received))
            .expect("a thread for the proxy");
        Self {
            port,
            orders: Some(orders),
            thread: Some(thread),
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Begins or ends to listen; returns when it is so.
    pub(super) fn listen(&self, listen: bool) {
        let (done, is_done) = channel();
        if let Some(orders) = &self.orders {
            let _ = orders.send(Order { listen, done });
        }
        is_done.recv().expect("the proxy's thread goes on");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Arc<Shared>, listener: StdListener, orders: UnboundedReceiver<Order>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime for the proxy");
    runtime.block_on(async {
        listener.set_nonblocking(true).expect("a listener of ours");
        let listener = TcpListener::from_std(listener).expect("a listener of ours");
        serve(shared, listener, orders).await;
    });
}

/// Ends when the proxy is dropped, and all links with it.
async fn serve(shared: &Arc<Shared>, listener: TcpListener, mut orders: UnboundedReceiver<Order>) {
    let port = listener.local_addr().expect("a bound listener").port();
    let mut listener = Some(listener);
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            client = accept(listener.as_ref()) => drop(links.spawn(Arc::clone(shared).serve(client))),
            Some(_) = links.join_next() => {}
            order = orders.recv() => {
                let Some(order) = order else { return };
                // The old one is closed before the new one is opened. A program that another thread is about to start
                // has it, too, for a moment, so closing alone is not enough.
                if let Some(old) = listener.take() {
                    let _ = SockRef::from(&old).shutdown(Shutdown::Both);
                }
                if order.listen {
                    listener = Some(bind(port).await);
                }
                let _ = order.done.send(());
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    loop {
        match listener {
            None => std::future::pending().await,
            Some(listener) => match listener.accept().await {
                Ok((client, _)) => return client,
                // Out of file descriptors, most likely: others must get the chance to close some.
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            },
        }
    }
}

async fn bind(port: u16) -> TcpListener {
    for _ in 0..BIND_TRIES {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return listener;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("somebody has taken port {port} in the meantime");
}
