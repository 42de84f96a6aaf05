//! The code of docs/fencing.md for the resource's side works: the test runs it word for word.

use rusqlite::{Connection, named_params};
use watchlock_support::server::RedisServer;

use crate::text;

/// The first block of code in this language.
fn block(language: &str) -> String {
    let document = text("docs/fencing.md");
    let start = format!("```{language}\n");
    let (_, rest) = document.split_once(&start).expect("a block");
    let (block, _) = rest.split_once("```").expect("its end");
    block.to_owned()
}

/// A token, and whether the resource accepts it: an equal one, but not a smaller one.
const WRITES: [(i64, bool); 6] = [
    (5, true),
    (5, true),
    (4, false),
    (1 << 53, true),
    ((1 << 53) - 1, false),
    (1 << 53, true),
];

#[test]
fn the_sql_takes_a_write_unless_its_token_is_smaller() {
    let sql = block("sql");
    let statements: Vec<_> = sql.split("\n\n").collect();
    assert_eq!(statements.len(), 2);
    for (number, statement) in statements.into_iter().enumerate() {
        let database = Connection::open_in_memory().unwrap();
        let table = "CREATE TABLE reports (id INTEGER PRIMARY KEY, author TEXT, fence INTEGER NOT NULL DEFAULT 0)";
        database.execute(table, ()).unwrap();
        if number == 0 {
            database
                .execute("INSERT INTO reports (id) VALUES (1)", ())
                .unwrap();
        }
        for (token, taken) in WRITES {
            let write = named_params! { ":id": 1, ":token": token, ":author": token.to_string() };
            let rows = database.execute(statement, write).unwrap();
            assert_eq!(rows == 1, taken, "{statement}: {token}");
        }
        let last = database.query_row("SELECT author, fence FROM reports", (), |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
        });
        assert_eq!(last.unwrap(), ((1_i64 << 53).to_string(), 1 << 53));
    }
}

#[tokio::test]
async fn the_script_takes_a_write_unless_its_token_is_smaller() {
    let server = RedisServer::start();
    let script = block("lua");
    for (token, taken) in WRITES {
        let token = token.to_string();
        let call = ["EVAL", &script, "1", "report", &token, &token];
        let written: bool = server.query(&call).await;
        assert_eq!(written, taken, "{token}");
    }
    let hash = server.hash("report").await;
    assert_eq!(hash["author"], (1_i64 << 53).to_string());
}
