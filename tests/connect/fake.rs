//! A server that answers what a test wants, in place of servers that are not installed.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The answer to one command.
pub(crate) enum Say {
    Now(&'static str),
    After(Duration, &'static str),
    Nothing,
}

/// Starts a server on this runtime, which ends with it; returns its address. `answer` gets each command's name.
pub(crate) async fn serve(answer: impl Fn(&str) -> Say + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("a bound listener").port();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move { talk(stream, &*answer).await });
        }
    });
    format!("redis://127.0.0.1:{port}/")
}

async fn talk(stream: TcpStream, answer: &(impl Fn(&str) -> Say + Sync)) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let name = name_of(&mut stream).await?;
        let text = match answer(&name) {
            Say::Now(text) => text,
            Say::After(delay, text) => {
                tokio::time::sleep(delay).await;
                text
            }
            Say::Nothing => continue,
        };
        stream.write_all(text.as_bytes()).await.ok()?;
    }
}

/// Reads one command, and returns its name in capitals.
async fn name_of(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let words = command(stream).await?;
    words.first().map(|word| word.to_uppercase())
}

/// Reads one command (`*2 $3 GET $1 k`).
pub(crate) async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(stream, '*').await? {
        let length = number(stream, '$').await?;
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}

async fn number(stream: &mut BufReader<TcpStream>, mark: char) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}
