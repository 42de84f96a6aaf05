//! The recipes: the tests of a service are those of `watchlock-test`.

use crate::text;

#[test]
fn the_tests_of_a_service_are_those_that_run() {
    let recipes = text("docs/recipes.md");
    let (_, shown) = recipes.split_once("```rust,ignore\n").expect("tests");
    let (shown, _) = shown.split_once("\n```").expect("their end");
    let service = text("watchlock-test/tests/service.rs");
    for part in shown.split("\n\n") {
        assert!(service.contains(part), "{part}");
    }
}
