//! Whatever a server answers leads to an answer or to an error: never to a panic, and never to a call without end.
//!
//! A server answers each command at random: rightly, with a reply of the right form, with any reply, with an error, with
//! bytes that are no reply, or not at all. `PROPTEST_CASES` says how many clients meet such a server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use watchlock::{Client, ClientBuilder, Lease, Quorum};

use crate::common::{ms, soon};
use crate::fake::{Say, command, serve};

const CASES: u64 = 600;

/// How many clients there are at the same time.
const AT_ONCE: usize = 24;

#[test]
fn no_answer_of_a_server_makes_a_client_panic() {
    crate::alone::run("fuzz::clients_of_servers_that_answer_at_random", &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the panic hook is the whole process's: it runs alone"]
async fn clients_of_servers_that_answer_at_random() {
    static PANICS: AtomicU32 = AtomicU32::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(panic);
    }));
    let asked = std::env::var("PROPTEST_CASES").ok();
    let cases = asked.map_or(CASES, |cases| cases.parse().expect("a number"));
    let first = fastrand::u64(..);
    let clients = (0..cases).map(|case| case_of(first.wrapping_add(case)));
    let clients = futures_util::stream::iter(clients);
    let clients = clients.buffer_unordered(AT_ONCE);
    let used = clients.fold(0, async |used, case| used + case).await;
    let panics = PANICS.load(Ordering::SeqCst);
    assert_eq!(panics, 0, "seeds from {first}");
    assert!(used > 0, "no client came as far as a lock: {first}");
}

/// One client, for some calls of each kind. Returns 1 if it connected.
async fn case_of(seed: u64) -> u32 {
    let mut rng = Rng::with_seed(seed);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("a bound listener").port();
    let mut servers = rng.fork();
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream, servers.fork(), port));
        }
    });
    let url = format!("redis://127.0.0.1:{port}/");
    let used = match rng.u8(..8) {
        0 => quorum(&url).await,
        1 => one(ClientBuilder::sentinel([&url, &url], "main")).await,
        2 | 3 => one(ClientBuilder::cluster([&url, &url])).await,
        4 => one(Client::builder(&url).acknowledged_by(1, ms(1))).await,
        _ => one(Client::builder(&url)).await,
    };
    server.abort();
    u32::from(used)
}

async fn quorum(url: &str) -> bool {
    let url = url.trim_end_matches('/');
    let urls = (0..3).map(|database| format!("{url}/{database}"));
    let quorum = Quorum::builder(urls)
        .connect_timeout(ms(200))
        .command_timeout(ms(40))
        .unavailable_after(ms(40))
        .restart_delay(Duration::ZERO);
    let Ok(quorum) = soon(quorum.connect()).await else {
        return false;
    };
    let _ = soon(quorum.get_lock("a").try_lock(ms(40), Lease::Watchdog)).await;
    soon(quorum.shutdown(ms(0))).await;
    true
}

async fn one(builder: ClientBuilder) -> bool {
    let builder = builder
        .connect_timeout(ms(200))
        .command_timeout(ms(40))
        .unavailable_after(ms(40));
    let connected = soon(builder.clone().connect()).await;
    let used = connected.is_ok();
    let client = connected.unwrap_or_else(|_| builder.connect_lazy().expect("good settings"));
    for round in 0..2 {
        let (plain, fenced) = (client.get_lock("a"), client.get_fenced_lock("b"));
        let (fair, rw) = (client.get_fair_lock("c"), client.get_read_write_lock("d"));
        let (read, write) = (rw.read_lock(), rw.write_lock());
        let waits = (
            soon(plain.try_lock(ms(60), Lease::Watchdog)),
            soon(plain.try_lock(ms(60), ms(500))),
            soon(fenced.try_lock(ms(40), ms(500))),
            soon(fair.try_lock(ms(60), Lease::Watchdog)),
            soon(read.try_lock(ms(40), ms(500))),
            soon(write.try_lock(ms(40), ms(500))),
        );
        let got = tokio::join!(waits.0, waits.1, waits.2, waits.3, waits.4, waits.5);
        if let Ok(Some(guard)) = got.0 {
            let _ = soon(guard.verify()).await;
            let _ = soon(guard.reenter(ms(500))).await.map(drop);
            let _ = soon(guard.unlock()).await;
        }
        let _ = soon(plain.is_locked()).await;
        let _ = soon(plain.remain_time_to_live()).await;
        if round > 0 {
            let _ = soon(plain.force_unlock()).await;
            let _ = soon(fair.force_unlock()).await;
        }
    }
    soon(client.shutdown(ms(0))).await;
    used
}

async fn talk(stream: TcpStream, mut rng: Rng, port: u16) -> Option<()> {
    let mut stream = BufReader::new(stream);
    // Most connections are well behaved for a while, so that a client comes further than its first question.
    let sane = rng.u32(..40);
    let mut asked = 0;
    loop {
        let words = command(&mut stream).await?;
        asked += 1;
        let said = if asked <= sane || rng.u8(..4) > 0 {
            expected(&words, &mut rng, port)
        } else {
            match rng.u8(..12) {
                0 => return None,
                1 => continue,
                2 => (0..rng.usize(..40)).map(|_| rng.u8(..)).collect(),
                3 | 4 => error(&mut rng).into_bytes(),
                _ => any_reply(&mut rng, 0).into_bytes(),
            }
        };
        stream.write_all(&said).await.ok()?;
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn array(items: &[String]) -> String {
    format!("*{}\r\n{}", items.len(), items.concat())
}

/// Numbers that mean something, and any others.
fn number(rng: &mut Rng) -> i64 {
    match rng.u8(..8) {
        0..4 => rng.i64(-11..9),
        4 | 5 => rng.i64(0..20_000),
        6 => *rng
            .choice(&[i64::MIN, i64::MAX, 1 << 53, 1 << 31])
            .expect("one"),
        _ => rng.i64(..),
    }
}

fn integers(rng: &mut Rng) -> String {
    let numbers: Vec<_> = (0..rng.usize(..4))
        .map(|_| format!(":{}\r\n", number(rng)))
        .collect();
    array(&numbers)
}

fn error(rng: &mut Rng) -> String {
    let lines = [
        "MOVED 1 127.0.0.1:1",
        "MOVED 99999 :",
        "ASK 7 [::1]:1",
        "TRYAGAIN",
        "NOSCRIPT",
        "LOADING x",
        "READONLY x",
        "NOAUTH x",
        "ERR unknown command 'x', with args beginning with: ",
        "ERR",
        "",
        "ERR Error running script (call to f): @user_script:9: -OOM",
    ];
    format!("-{}\r\n", rng.choice(lines).expect("one"))
}

/// A reply of any type.
fn any_reply(rng: &mut Rng, depth: usize) -> String {
    let items = |rng: &mut Rng, most: usize| -> Vec<String> {
        let count = if depth > 3 { 0 } else { rng.usize(..most) };
        (0..count).map(|_| any_reply(rng, depth + 1)).collect()
    };
    match rng.u8(..12) {
        0 => "$-1\r\n".to_owned(),
        1 => "*-1\r\n".to_owned(),
        2 => "_\r\n".to_owned(),
        3 => "#t\r\n".to_owned(),
        4 => ",1.5\r\n".to_owned(),
        5 => "+OK\r\n".to_owned(),
        6 => bulk("message"),
        7 => bulk("redisson_lock__channel:{a}"),
        8 => format!(":{}\r\n", number(rng)),
        9 => {
            let pairs = items(rng, 4);
            let even = pairs.len() / 2 * 2;
            format!("%{}\r\n{}", even / 2, pairs[..even].concat())
        }
        10 => {
            let data = items(rng, 4);
            format!(
                ">{}\r\n{}{}",
                data.len() + 1,
                bulk("message"),
                data.concat()
            )
        }
        _ => array(&items(rng, 6)),
    }
}

/// What a server answers, with numbers at random.
fn expected(words: &[String], rng: &mut Rng, port: u16) -> Vec<u8> {
    let word = |index: usize| words.get(index).map_or("", String::as_str);
    let node = array(&[bulk("127.0.0.1"), format!(":{port}\r\n"), bulk("id")]);
    let said = match word(0).to_uppercase().as_str() {
        "HELLO" => {
            let mode = ["standalone", "standalone", "cluster", "cluster", "sentinel"];
            let role = ["master", "master", "master", "replica"];
            let fields = [
                ("server", "redis"),
                ("version", "7.4.1"),
                ("mode", rng.choice(mode).expect("one")),
                ("role", rng.choice(role).expect("one")),
            ];
            let fields = fields.map(|(name, value)| bulk(name) + &bulk(value));
            if word(1) == "3" {
                format!("%{}\r\n{}", fields.len(), fields.concat())
            } else {
                format!("*{}\r\n{}", fields.len() * 2, fields.concat())
            }
        }
        "CLUSTER" if word(1).eq_ignore_ascii_case("MYID") => bulk("id"),
        "CLUSTER" => {
            let (first, last) = (rng.u16(..16_500), rng.u16(..16_500));
            let all = array(&[":0\r\n".into(), ":16383\r\n".into(), node.clone()]);
            let some = array(&[format!(":{first}\r\n"), format!(":{last}\r\n"), node]);
            array(&if rng.bool() {
                vec![all]
            } else {
                vec![some, all]
            })
        }
        "SENTINEL" if word(1).eq_ignore_ascii_case("MASTER") => {
            array(&[bulk("config-epoch"), bulk("1")])
        }
        "SENTINEL" => array(&[bulk("127.0.0.1"), bulk(&port.to_string())]),
        "INFO" => {
            let (run, uptime) = (rng.u8(..), number(rng).unsigned_abs());
            bulk(&format!("run_id:{run}\r\nuptime_in_seconds:{uptime}\r\n"))
        }
        "SUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "SUNSUBSCRIBE" => {
            let kind = word(0).to_lowercase();
            let told = [bulk(&kind), bulk(word(1)), ":1\r\n".to_owned()];
            let message = [bulk("message"), bulk(word(1)), bulk("0")];
            let sign = *rng.choice(&['*', '>']).expect("one");
            let said = format!("{sign}3\r\n{}", told.concat());
            if rng.bool() {
                format!("{said}{sign}3\r\n{}", message.concat())
            } else {
                said
            }
        }
        "EVAL" | "EVALSHA" if rng.bool() => format!(":{}\r\n", number(rng)),
        "EVAL" | "EVALSHA" => integers(rng),
        "PTTL" | "WAIT" => format!(":{}\r\n", number(rng)),
        "PING" => "+PONG\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    };
    said.into_bytes()
}

/// A program in front of the server may say any time, and a semaphore's holders are those whose end is later.
#[tokio::test]
async fn an_absurd_time_makes_no_question_panic() {
    let url = serve(|name| match name {
        "HELLO" => Say::Now(
            "*6\r\n$7\r\nversion\r\n$5\r\n7.4.1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n\
            $4\r\nrole\r\n$6\r\nmaster\r\n",
        ),
        "TIME" => Say::Now("*2\r\n$20\r\n18446744073709551615\r\n$20\r\n18446744073709551615\r\n"),
        "GET" => Say::Now("$1\r\n1\r\n"),
        "ZRANGEBYSCORE" => Say::Now("*0\r\n"),
        "EVAL" => Say::Now(":0\r\n"),
        _ => Say::Now("+OK\r\n"),
    })
    .await;
    let client = soon(Client::connect(&url)).await.unwrap();
    let holders = soon(client.get_semaphore("x").holders()).await;
    assert_eq!(holders.unwrap(), []);
}
