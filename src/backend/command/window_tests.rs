//! Which commands get a place, and in which order.

use std::sync::mpsc;
use std::time::Duration;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(1);
const QUICK: Option<Duration> = Some(Duration::from_millis(1));

fn window() -> Window {
    Window::new(TIMEOUT)
}

/// A queued command that notes when it is submitted.
struct FakeQueued {
    name: &'static str,
    taken: bool,
    begun: Arc<Mutex<Vec<&'static str>>>,
}

impl Queueable for FakeQueued {
    fn begin(self: Arc<Self>, _place: Place) -> bool {
        self.begun.lock().push(self.name);
        !self.taken
    }

    fn go_on(self: Arc<Self>) {}

    fn fail_unsent(&self, _failure: &Failure) {}
}

#[derive(Default)]
struct Scene {
    begun: Arc<Mutex<Vec<&'static str>>>,
    commands: Vec<Arc<dyn Queueable>>,
}

impl Scene {
    fn queue(&mut self, window: &Window, name: &'static str, turn: Turn) -> QueueKey {
        let begun = Arc::clone(&self.begun);
        let taken = name == "taken back";
        let command: Arc<dyn Queueable> = Arc::new(FakeQueued { name, taken, begun });
        let key = window.wait(turn, false, Arc::downgrade(&command));
        self.commands.push(command);
        key
    }
}

#[test]
fn commands_of_holds_go_first_and_each_turn_in_its_order() {
    let (window, mut scene) = (window(), Scene::default());
    assert!(window.enter(Turn::New).is_none(), "there is no connection");
    for (name, turn) in [
        ("new", Turn::New),
        ("waiter", Turn::Waiter),
        ("hold", Turn::Hold),
        ("newer", Turn::New),
        ("next hold", Turn::Hold),
    ] {
        scene.queue(&window, name, turn);
    }
    let left = scene.queue(&window, "left", Turn::Hold);
    window.forget(left);
    window.admit();
    assert!(scene.begun.lock().is_empty());
    window.open(1);
    assert!(window.enter(Turn::New).is_none(), "others came before");
    window.admit();
    let begun = scene.begun.lock().clone();
    assert_eq!(begun, ["hold", "next hold", "waiter", "new", "newer"]);
    assert!(!window.is_awaited() && window.enter(Turn::New).is_some());
}

#[test]
fn a_new_connection_has_few_places_and_each_answer_adds_one() {
    let window = window();
    window.open(1);
    let places: Vec<_> = std::iter::from_fn(|| window.enter(Turn::New)).collect();
    assert_eq!(places.len(), usize::from(FIRST));
    // One without an answer only comes back.
    window.leave(places[0], None);
    assert!(window.enter(Turn::New).is_some() && window.enter(Turn::New).is_none());
    window.leave(places[1], QUICK);
    assert!(window.enter(Turn::New).is_some() && window.enter(Turn::New).is_some());
    assert!(window.enter(Turn::New).is_none());
    for _ in 0..10_000 {
        window.leave(places[1], QUICK);
    }
    let most = Places::of(window.places.load(Ordering::SeqCst)).all;
    assert_eq!(most, MOST);
}

#[test]
fn a_slow_answer_takes_a_place_away_and_then_their_number_grows_slowly() {
    let ms = |ms| Some(Duration::from_millis(ms));
    let window = window();
    window.open(1);
    let place = window.enter(Turn::New).unwrap();
    let all = || Places::of(window.places.load(Ordering::SeqCst)).all;
    let after = |took| {
        window.leave(place, ms(took));
        assert!(window.enter(Turn::New).is_some());
        all()
    };
    assert_eq!(after(600), FIRST + 1, "the fastest so far");
    assert_eq!(after(849), FIRST + 2);
    assert_eq!(after(850), FIRST + 1, "a quarter of a time-out longer");
    let answers = (0..100_000).find(|_| after(849) > FIRST + 1);
    assert!(answers.is_some(), "it grows by chance");
    let before = all();
    assert!((0..1_000).map(|_| after(600)).max().unwrap() < before + 200);
    while after(850) > FIRST {}
    assert_eq!(after(1_000), FIRST, "it is that far away by now");
    assert_eq!(after(1_249), FIRST + 1);
    assert_eq!(after(1_249), FIRST + 2, "and grows as a new one");
    while window.enter(Turn::New).is_some() {}
    window.leave(place, ms(1_250));
    assert!(window.enter(Turn::New).is_none(), "its place is taken away");
    window.open(2);
    let place = window.enter(Turn::New).unwrap();
    window.leave(place, ms(3_000));
    assert_eq!(all(), FIRST + 1, "another connection");
}

#[test]
fn a_place_of_an_earlier_connection_is_worth_nothing() {
    let window = window();
    window.open(1);
    let old = window.enter(Turn::New).expect("it is open");
    window.close();
    assert!(window.enter(Turn::New).is_none());
    window.open(2);
    window.leave(old, QUICK);
    let places = std::iter::from_fn(|| window.enter(Turn::New)).count();
    assert_eq!(places, usize::from(FIRST));
}

#[test]
fn a_slow_answer_may_come_while_its_connection_is_given_up() {
    const CONNECTIONS: u64 = 200_000;
    let window = window();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                for took in [QUICK, Some(TIMEOUT)] {
                    if let Some(place) = window.enter(Turn::New) {
                        window.leave(place, took);
                    }
                }
            }
        });
        for connection in 1..=CONNECTIONS {
            if answering.is_finished() {
                break;
            }
            window.open(connection);
            for _ in 0..connection % 64 {
                std::hint::spin_loop();
            }
            window.close();
        }
        ended.store(true, Ordering::SeqCst);
        answering.join().expect("an answer never panics");
    });
    assert!(window.enter(Turn::New).is_none());
}

#[test]
fn a_command_that_was_taken_back_or_is_gone_leaves_its_place_to_the_next() {
    let (window, mut scene) = (window(), Scene::default());
    scene.queue(&window, "taken back", Turn::Hold);
    scene.queue(&window, "gone", Turn::Hold);
    scene.commands.pop();
    scene.queue(&window, "next", Turn::New);
    window.open(1);
    let taken: Vec<_> = std::iter::from_fn(|| window.take()).collect();
    window.admit();
    assert!(scene.begun.lock().is_empty(), "no place is free");
    window.leave(taken[0], None);
    window.admit();
    assert_eq!(*scene.begun.lock(), ["taken back", "next"]);
    assert!(!window.is_awaited());
}

#[test]
fn so_many_as_are_let_in_get_places_beside_those_about_holds() {
    let (window, mut scene) = (window(), Scene::default());
    window.open(1);
    window.let_in(1);
    assert!(window.enter(Turn::New).is_some());
    assert!(window.enter(Turn::New).is_none());
    assert!(window.enter(Turn::Hold).is_some());
    scene.queue(&window, "new", Turn::New);
    scene.queue(&window, "waiter", Turn::Waiter);
    window.admit();
    assert!(scene.begun.lock().is_empty());
    scene.queue(&window, "hold", Turn::Hold);
    window.admit();
    assert_eq!(*scene.begun.lock(), ["hold"]);
    window.let_in(1);
    window.admit();
    assert_eq!(*scene.begun.lock(), ["hold", "waiter"]);
    window.let_in(usize::MAX);
    window.admit();
    assert_eq!(*scene.begun.lock(), ["hold", "waiter", "new"]);
    assert!(std::iter::from_fn(|| window.enter(Turn::New)).count() > 1);
}

/// A queued command that reports its place.
struct Reporting(mpsc::Sender<Place>);

impl Queueable for Reporting {
    fn begin(self: Arc<Self>, place: Place) -> bool {
        self.0.send(place).is_ok()
    }

    fn go_on(self: Arc<Self>) {}

    fn fail_unsent(&self, _failure: &Failure) {}
}

#[test]
fn none_is_left_behind_while_some_come_and_others_are_let_in() {
    const THREADS: usize = 3;
    const EACH: usize = 5_000;
    let window = window();
    let (begun, places) = mpsc::channel();
    window.let_in(1);
    window.open(1);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (window, begun) = (&window, begun.clone());
            scope.spawn(move || {
                let mut commands = Vec::with_capacity(EACH);
                for _ in 0..EACH {
                    if let Some(place) = window.enter(Turn::New) {
                        begun.send(place).expect("the test receives");
                    } else {
                        let command: Arc<dyn Queueable> = Arc::new(Reporting(begun.clone()));
                        window.wait(Turn::New, false, Arc::downgrade(&command));
                        commands.push(command);
                    }
                    window.admit();
                }
                // The window does not own what waits.
                while window.is_awaited() && !window.is_paused() {
                    std::thread::yield_now();
                }
                drop(commands);
            });
        }
        // As the task that acknowledges: it lets some in, and rests until one comes.
        for number in 0..THREADS * EACH {
            let Ok(place) = places.recv_timeout(Duration::from_secs(20)) else {
                // Lets the other threads end.
                window.pause();
                panic!("nobody is woken for number {number}");
            };
            window.leave(place, QUICK);
            window.let_in(1 + number % 3);
            window.admit();
        }
    });
    assert!(!window.is_awaited());
}

#[test]
fn a_command_of_a_caller_that_is_gone_needs_no_place_where_there_is_no_limit() {
    let (window, mut scene) = (window(), Scene::default());
    scene.queue(&window, "gone", Turn::New);
    scene.commands.pop();
    window.open(1);
    window.admit();
    assert!(!window.is_awaited());
}
