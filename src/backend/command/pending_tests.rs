//! A pending command: who drives it, and who is woken.

use super::*;
use crate::backend::command::send::is_cut;
use crate::backend::command::{LaneConfig, TimedReply};
use crate::backend::connect::Dialer;
use crate::backend::timers::Timers;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::script::Reply;
use redis::aio::MultiplexedConnection;
use redis::{IntoConnectionInfo, Value};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A driver that takes a command and ends before it replies looks just like a driver that had ended before.
#[tokio::test]
async fn only_a_refused_knock_proves_that_nothing_was_sent() {
    let (near, _far) = tokio::io::duplex(1024);
    let info = "redis://127.0.0.1/".into_connection_info().unwrap();
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    let made = MultiplexedConnection::new(&settings, near).await;
    let (mut connection, driver) = made.unwrap();
    assert!(!is_cut(&mut connection).await);
    drop(driver);
    let result = connection.send_packed_command(&redis::cmd("PING")).await;
    assert!(Failure::from(result.and_then(Value::extract_error).unwrap_err()).is_unanswered());
    assert!(is_cut(&mut connection).await);
}

/// A lane whose runtime has ended.
fn lane() -> Arc<Lane> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let dialer = Dialer::from_url("redis://127.0.0.1/", None).unwrap();
    let timeout = Duration::from_secs(1);
    lane_to(dialer, timeout, Clock::system(), runtime.handle())
}

fn lane_to(dialer: Dialer, command_timeout: Duration, clock: Clock, runtime: &Handle) -> Arc<Lane> {
    let config = LaneConfig {
        dialer: Arc::new(dialer),
        clock: clock.clone(),
        backoff: Backoff::new(),
        command_timeout,
        connect_timeout: Duration::from_secs(1),
        timers: Timers::of(runtime, clock),
        asks_server: false,
        broken: Arc::default(),
        node: None,
        acks: None,
        metrics: crate::report::Metrics::default(),
        used_by: "callers",
    };
    Lane::open(config, Box::default(), runtime, false)
}

/// A command under the control of a test: its waker, and whether it has ended.
#[derive(Clone, Default)]
struct FakeCommand(Arc<Mutex<(Option<Waker>, bool)>>);

impl FakeCommand {
    fn in_flight(&self) -> Pending {
        let Self(state) = self.clone();
        let run = std::future::poll_fn(move |context| {
            let mut inner = state.lock();
            inner.0 = Some(context.waker().clone());
            if inner.1 {
                Poll::Ready(Ok(TimedReply {
                    reply: Reply::Other,
                    sent_at: Moment::default(),
                    server_age: None,
                    value: None,
                }))
            } else {
                Poll::Pending
            }
        });
        Pending::of(run.boxed(), lane())
    }

    fn news(&self, over: bool) {
        let waker = {
            let mut inner = self.0.lock();
            inner.1 = over;
            inner.0.take()
        };
        waker.expect("somebody polled").wake();
    }
}

/// Counts wake-ups.
#[derive(Default)]
struct CountedWakes(AtomicU64);

impl Wake for CountedWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl CountedWakes {
    /// Whether the command has succeeded, once it has ended.
    fn poll(self: &Arc<Self>, future: &mut Pending) -> Poll<bool> {
        let waker = Waker::from(Arc::clone(self));
        let polled = future.poll_unpin(&mut Context::from_waker(&waker));
        polled.map(|outcome| outcome.is_ok())
    }

    fn woken(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn news_wakes_the_one_that_awaits_it_and_all_from_the_second_on() {
    let command = FakeCommand::default();
    let mut first = command.in_flight();
    let [one, other] = <[Arc<CountedWakes>; 2]>::default();
    assert!(one.poll(&mut first).is_pending());
    command.news(false);
    assert_eq!(one.woken(), 1);
    assert!(one.poll(&mut first).is_pending());
    let mut second = first.clone();
    assert!(other.poll(&mut second).is_pending());
    command.news(false);
    assert_eq!((one.woken(), other.woken()), (1, 1));
    assert!(one.poll(&mut first).is_pending());
    assert!(other.poll(&mut second).is_pending());
    drop(second);
    command.news(false);
    assert_eq!((one.woken(), other.woken()), (1, 0), "it is gone");
}

#[test]
fn its_end_wakes_all_but_the_one_who_saw_it() {
    let command = FakeCommand::default();
    let mut first = command.in_flight();
    let mut second = first.clone();
    let [one, other] = <[Arc<CountedWakes>; 2]>::default();
    assert!(one.poll(&mut first).is_pending());
    assert!(other.poll(&mut second).is_pending());
    command.news(true);
    assert_eq!((one.woken(), other.woken()), (1, 1));
    assert!(other.poll(&mut second).is_ready());
    assert_eq!((one.woken(), other.woken()), (0, 0), "both know");
    assert!(one.poll(&mut first).is_ready());
    // A clone that polled again is woken by the end that another one sees.
    let command = FakeCommand::default();
    let mut first = command.in_flight();
    let mut second = first.clone();
    assert!(one.poll(&mut first).is_pending());
    assert!(other.poll(&mut second).is_pending());
    command.0.lock().1 = true;
    assert!(other.poll(&mut second).is_ready());
    assert_eq!((one.woken(), other.woken()), (1, 0));
    assert!(one.poll(&mut first).is_ready());
}

/// A future may move from task to task.
#[test]
fn the_task_that_polled_last_is_woken_by_its_end() {
    let command = FakeCommand::default();
    let mut flight = command.in_flight();
    let [one, other] = <[Arc<CountedWakes>; 2]>::default();
    assert!(one.poll(&mut flight).is_pending());
    assert!(other.poll(&mut flight).is_pending());
    flight.clone().overdue();
    assert_eq!((one.woken(), other.woken()), (0, 1));
    assert_eq!(other.poll(&mut flight), Poll::Ready(false));
    // The same when another clone sees the end.
    let command = FakeCommand::default();
    let mut first = command.in_flight();
    let mut second = first.clone();
    assert!(first == second && first != flight);
    assert!(one.poll(&mut first).is_pending());
    assert!(other.poll(&mut first).is_pending());
    command.0.lock().1 = true;
    assert_eq!(one.poll(&mut second), Poll::Ready(true));
    assert_eq!(other.woken(), 1);
}

/// A waker may run any code: this one polls the future on another thread before it returns.
#[derive(Default)]
struct Polls(Mutex<Option<Pending>>, AtomicU64);

impl Wake for Polls {
    fn wake(self: Arc<Self>) {
        let Some(flight) = self.0.lock().take() else {
            return;
        };
        let (send, outcome) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(flight.now_or_never()));
        // Times out if a lock is held that the poll needs.
        let outcome = outcome.recv_timeout(Duration::from_secs(30));
        let has_ended = matches!(outcome, Ok(Some(_)));
        self.1.store(has_ended.into(), Ordering::Relaxed);
    }
}

#[test]
fn nothing_is_woken_under_a_lock() {
    for ended in [false, true] {
        let command = FakeCommand::default();
        let mut first = command.in_flight();
        let mut second = first.clone();
        let (polls, other) = (Arc::<Polls>::default(), Arc::<CountedWakes>::default());
        let waker = Waker::from(Arc::clone(&polls));
        assert!(
            first
                .poll_unpin(&mut Context::from_waker(&waker))
                .is_pending()
        );
        *polls.0.lock() = Some(first);
        if ended {
            second.overdue();
        } else {
            command.0.lock().1 = true;
            assert!(other.poll(&mut second).is_ready());
        }
        assert_eq!(polls.1.load(Ordering::Relaxed), 1);
    }
}

/// What greets each connection and is silent from then on.
async fn silent_server() -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(1..) = stream.read(&mut bytes).await {
                    let settings = bytes.windows(7).filter(|word| word == b"SETINFO");
                    let replies = b"+OK\r\n".repeat(settings.count());
                    if stream.write_all(&replies).await.is_err() {
                        break;
                    }
                    bytes.fill(0);
                }
            });
        }
    });
    url
}

/// A command that was submitted, who awaits it, and the number of its connection.
async fn submitted(lane: &Arc<Lane>) -> (Pending, JoinHandle<CommandResult>, u64) {
    let on = Arc::clone(lane);
    let sending = async move {
        let sent = once(&on, &mut Call::ping().encode(), false).await;
        sent.map_err(|wrong| wrong.failure)
    };
    let command = Pending::queued(sending.boxed(), Arc::clone(lane), (Turn::New, false), None);
    let asked = tokio::spawn(command.clone());
    while command.submitted_at() == Moment::NEVER {
        tokio::task::yield_now().await;
    }
    let generation = lane.connected().expect("it is connected").generation;
    (command, asked, generation)
}

/// It was wanted before it was submitted, and its silence counts from the submission.
#[tokio::test]
async fn a_silent_connection_is_given_up_however_late_the_submission_was() {
    let timeout = Duration::from_millis(300);
    let dialer = Dialer::from_url(&silent_server().await, None).unwrap();
    let (clock, ahead) = Clock::driven();
    let lane = lane_to(dialer, timeout, clock, &Handle::current());
    let since = lane.now();
    ahead.advance(timeout / 2);
    let (command, asked, generation) = submitted(&lane).await;
    assert!(command.submitted_at() > since);
    assert!(command.within_of(since, timeout).await.is_err());
    assert!(asked.await.unwrap().is_err());
    // As soon as the runtime has run for a moment.
    let left = tokio::time::timeout(timeout, lane.has_left(generation));
    left.await.expect("it is given up");
}

/// The silence was shorter than a command time-out, so it says nothing about the connection.
#[tokio::test]
async fn a_command_ends_with_the_wait_of_its_caller_and_keeps_the_connection() {
    let timeout = Duration::from_secs(60);
    let dialer = Dialer::from_url(&silent_server().await, None).unwrap();
    let lane = lane_to(dialer, timeout, Clock::system(), &Handle::current());
    let (command, asked, generation) = submitted(&lane).await;
    let end = lane.now() + Duration::from_millis(20);
    let ended = tokio::time::timeout(timeout / 2, command.until(timeout, end)).await;
    assert!(ended.expect("at the end of the wait").is_err());
    assert!(asked.await.unwrap().is_err());
    let now = lane.connected().map(|connected| connected.generation);
    assert_eq!(now, Some(generation));
}

/// It is not a command of the window, and was not polled in between.
#[tokio::test]
async fn who_waits_for_a_connection_that_came_and_was_given_up_gets_the_next_one() {
    let timeout = Duration::from_secs(60);
    let dialer = Dialer::from_url(&silent_server().await, None).unwrap();
    let lane = lane_to(dialer, timeout, Clock::system(), &Handle::current());
    let mut connecting = Box::pin(lane.connect());
    assert!((&mut connecting).now_or_never().is_none());
    while lane.connected().is_none() {
        tokio::task::yield_now().await;
    }
    lane.rest();
    let connected = tokio::time::timeout(timeout / 6, connecting).await;
    let connected = connected.expect("it connects again").ok();
    assert_eq!(connected.map(|connected| connected.generation), Some(2));
}

/// What nobody waits for stays unconnected.
#[tokio::test]
async fn a_lane_that_rests_does_not_connect_again_by_itself() {
    let timeout = Duration::from_secs(60);
    let dialer = Dialer::from_url(&silent_server().await, None).unwrap();
    let lane = lane_to(dialer, timeout, Clock::system(), &Handle::current());
    assert!(lane.connect().await.is_ok());
    lane.rest();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(lane.connected().is_none());
}
