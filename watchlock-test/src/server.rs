//! The server's thread: a runtime of its own, which accepts clients and runs what they send. Everything else asks it by
//! an order, which it runs between two commands.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::task::{LocalSet, spawn_local};
use watchlock::ClockDriver;

use crate::core::SessionId;
use crate::state::{Accepted, Output, State};

/// How long its end waits for the thread at most: a script that never ends would hold it.
const END: Duration = Duration::from_secs(2);

/// How much is read at once.
const CHUNK: usize = 16 * 1024;

/// How often a connection looks whether `CLIENT PAUSE` is over.
const PAUSE: Duration = Duration::from_millis(5);

/// After how long it accepts again if it could not, for want of files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

type Order = Box<dyn FnOnce(&mut State) + Send>;
type Shared = Rc<RefCell<State>>;

/// The thread, which ends with this value.
pub(crate) struct Server {
    port: u16,
    orders: Orders,
    stop: Option<oneshot::Sender<()>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Gives orders to the thread.
#[derive(Clone)]
pub(crate) struct Orders(UnboundedSender<Order>);

impl Server {
    /// Listens on 127.0.0.1; port 0 is a free one.
    pub(crate) fn start(port: u16, clock: ClockDriver) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (orders, ordered) = unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let (ends, ended) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("watchlock-test-redis".into())
            .spawn(move || {
                let _ends: mpsc::Sender<()> = ends;
                let state = State::new(port, clock);
                run(&runtime, listener, state, ordered, stopped);
            })?;
        Ok(Self {
            port,
            orders: Orders(orders),
            stop: Some(stop),
            ended: Mutex::new(ended),
            thread: Some(thread),
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn orders(&self) -> &Orders {
        &self.orders
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.ended.get_mut().recv_timeout(END);
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            // If it panicked, it has said so.
            let _ = thread.join();
        }
    }
}

impl Orders {
    /// Runs `order` on the thread, and returns what it does. `None` if the thread has ended.
    pub(crate) fn try_ask<R: Send + 'static>(
        &self,
        order: impl FnOnce(&mut State) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answered) = mpsc::channel();
        let order = move |state: &mut State| {
            let _ = answer.send(order(state));
        };
        self.0.send(Box::new(order)).ok()?;
        answered.recv().ok()
    }

    /// The same, for as long as the [`Server`] exists.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        order: impl FnOnce(&mut State) -> R + Send + 'static,
    ) -> R {
        let answer = self.try_ask(order);
        answer.unwrap_or_else(|| panic!("the thread of the Redis in memory has panicked"))
    }
}

fn run(
    runtime: &Runtime,
    listener: TcpListener,
    state: State,
    ordered: UnboundedReceiver<Order>,
    stopped: oneshot::Receiver<()>,
) {
    LocalSet::new().block_on(runtime, async move {
        let state = Rc::new(RefCell::new(state));
        tokio::select! {
            biased;
            _ = stopped => {}
            () = obey(ordered, &state) => {}
            () = accept(listener, &state) => {}
        }
    });
}

async fn obey(mut ordered: UnboundedReceiver<Order>, state: &Shared) {
    while let Some(order) = ordered.recv().await {
        order(&mut state.borrow_mut());
    }
}

async fn accept(listener: TcpListener, state: &Shared) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => panic!("the Redis in memory cannot listen: {error}"),
    };
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let accepted = state.borrow_mut().connect(from);
        if let Some(accepted) = accepted {
            spawn_local(serve(stream, accepted, Rc::clone(state)));
        }
    }
}

/// Serves a client until either side closes the connection.
async fn serve(stream: TcpStream, accepted: Accepted, state: Shared) {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let Accepted {
        session,
        output,
        backlog,
        cut,
        frozen,
    } = accepted;
    tokio::select! {
        biased;
        () = cut.notified() => {}
        () = send(write, output, frozen.clone(), &backlog) => {}
        () = receive(read, session, frozen, &state) => {}
    }
    state.borrow_mut().disconnect(session);
}

/// Runs what arrives. Never returns before the connection breaks: replies may still be on their way.
async fn receive(
    mut read: OwnedReadHalf,
    session: SessionId,
    mut frozen: watch::Receiver<bool>,
    state: &Shared,
) {
    let mut bytes = Vec::with_capacity(CHUNK);
    loop {
        bytes.clear();
        match read.read_buf(&mut bytes).await {
            Ok(0) => break state.borrow_mut().finish(session),
            Ok(_) => {}
            Err(_) => return,
        }
        thawed(&mut frozen).await;
        let mut pause = state.borrow_mut().receive(session, &bytes);
        while let Some(span) = pause {
            tokio::time::sleep(span.min(PAUSE)).await;
            pause = state.borrow_mut().receive(session, &[]);
        }
    }
    std::future::pending::<()>().await;
}

async fn send(
    mut write: OwnedWriteHalf,
    mut output: UnboundedReceiver<Output>,
    mut frozen: watch::Receiver<bool>,
    backlog: &Cell<usize>,
) {
    while let Some(next) = output.recv().await {
        match next {
            Output::Bytes(bytes) => {
                thawed(&mut frozen).await;
                if write.write_all(&bytes).await.is_err() {
                    return;
                }
                backlog.set(backlog.get().saturating_sub(bytes.len()));
            }
            Output::Pause(span) => tokio::time::sleep(span).await,
        }
    }
}

async fn thawed(frozen: &mut watch::Receiver<bool>) {
    // Fails if the state is gone, and the connection with it.
    let _ = frozen.wait_for(|is_frozen| !is_frozen).await;
}
