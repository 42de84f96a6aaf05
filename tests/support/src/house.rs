//! What can be counted of a crate's sources: lines, types, imports from file to file. Tests do not count: neither files
//! and folders whose names end in `_tests`, nor what a file has from its `#[cfg(test)] mod` on.
//!
//! It reads words, not Rust: strings and comments are blanked, `use` trees and paths that begin with `crate`, `self`,
//! `super` or a module of the file's own are followed, through re-exports, to the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Names that a file re-exports: the name, and the path behind it.
type Exports = BTreeMap<String, Vec<String>>;

/// The sources of a crate.
#[derive(Debug)]
pub struct House {
    files: Vec<File>,
}

/// A file, without its tests.
#[derive(Debug)]
pub struct File {
    /// Below `src/`, with slashes.
    pub path: String,
    /// So many lines, comments included.
    pub lines: usize,
    /// Without comments, strings and character literals.
    code: String,
    module: Vec<String>,
    children: BTreeSet<String>,
    exports: Exports,
    named: BTreeSet<Vec<String>>,
}

impl House {
    /// Reads all files of the folder `src`.
    #[must_use]
    pub fn read(src: &Path) -> Self {
        let mut files = Vec::new();
        collect(src, "", &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    /// The files, by their paths.
    #[must_use]
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Structs, enums and traits, by name, with the files that define one of that name.
    #[must_use]
    pub fn types(&self) -> BTreeMap<&str, Vec<&str>> {
        self.defined(&["struct", "enum", "trait"])
    }

    /// Names with more than one meaning: the types, and what stands for a type. What blocks is named as what waits, and
    /// means the same.
    #[must_use]
    pub fn repeated_names(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut names = self.defined(&["struct", "enum", "trait", "type"]);
        for files in names.values_mut() {
            files.retain(|file| *file != "blocking.rs");
        }
        names.retain(|_, files| files.len() > 1);
        names
    }

    fn defined(&self, words: &[&str]) -> BTreeMap<&str, Vec<&str>> {
        let mut names = BTreeMap::<_, Vec<_>>::new();
        for file in &self.files {
            for name in file.code.lines().filter_map(|line| defines(line, words)) {
                names.entry(name).or_default().push(file.path.as_str());
            }
        }
        names
    }

    /// Who imports from whom, each pair once.
    #[must_use]
    pub fn imports(&self) -> BTreeSet<(&str, &str)> {
        let mut imports = BTreeSet::new();
        for file in &self.files {
            for path in &file.named {
                let target = self.target(&file.module, path, 0);
                if let Some(target) = target.filter(|target| target.path != file.path) {
                    imports.insert((file.path.as_str(), target.path.as_str()));
                }
            }
        }
        imports
    }

    /// Groups of files that reach each other by imports.
    #[must_use]
    pub fn circles(&self) -> Vec<Vec<&str>> {
        let imports = self.imports();
        let files: BTreeSet<&str> = imports.iter().map(|(from, _)| *from).collect();
        let all: BTreeMap<_, _> = files
            .iter()
            .map(|file| (*file, reached(&imports, file)))
            .collect();
        let mut left = files;
        let mut circles = Vec::new();
        while let Some(first) = left.pop_first() {
            let back = |file: &&&str| all.get(**file).is_some_and(|files| files.contains(first));
            // A file that is in a circle reaches itself, too.
            let circle: Vec<_> = all[first].iter().filter(back).copied().collect();
            if !circle.is_empty() {
                left.retain(|file| !circle.contains(file));
                circles.push(circle);
            }
        }
        circles
    }

    fn module(&self, path: &[String]) -> Option<&File> {
        self.files.iter().find(|file| file.module == path)
    }

    /// The file that defines what `path` names in `module`.
    fn target(&self, module: &[String], path: &[String], depth: usize) -> Option<&File> {
        let mut at = module.to_vec();
        for (index, word) in path.iter().enumerate() {
            match word.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => _ = at.pop(),
                _ => {
                    let file = self.module(&at)?;
                    if file.children.contains(word) {
                        at.push(word.clone());
                    } else if let Some(export) = file.exports.get(word).filter(|_| depth < 9) {
                        let whole = [export, &path[index + 1..]].concat();
                        return self.target(&at, &whole, depth + 1);
                    } else {
                        break;
                    }
                }
            }
        }
        self.module(&at)
    }
}

impl File {
    fn new(path: String, text: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let lines = &lines[..tests_begin(&lines)];
        let code = blanked(&lines.join("\n"));
        let mut module: Vec<_> = path.trim_end_matches(".rs").split('/').collect();
        if matches!(module.last(), Some(&("mod" | "lib"))) {
            module.pop();
        }
        let module = module.into_iter().map(str::to_owned).collect();
        let mut file = Self {
            path,
            lines: lines.len(),
            code: String::new(),
            module,
            children: BTreeSet::new(),
            exports: Exports::new(),
            named: BTreeSet::new(),
        };
        file.look_at(&words(&code));
        file.code = code;
        file
    }

    fn look_at(&mut self, words: &[&str]) {
        for three in words.windows(3) {
            if three[0] == "mod" && three[2] == ";" {
                self.children.insert(three[1].to_owned());
            }
        }
        let mut index = 0;
        while index < words.len() {
            let before = index.checked_sub(1).map_or("", |before| words[before]);
            let after = words.get(index + 1).copied().unwrap_or_default();
            if words[index] == "use" && after != "<" {
                let end = words[index..].iter().position(|word| *word == ";");
                let end = index + end.unwrap_or(1);
                self.uses(&words[index + 1..end], matches!(before, "pub" | ")"));
                index = end;
            } else if after == "::" && !matches!(before, "::" | "in") && self.leads(words[index]) {
                self.named.insert(path_at(&words[index..]));
            }
            index += 1;
        }
    }

    /// Whether a path that begins like this stays in the crate.
    fn leads(&self, word: &str) -> bool {
        matches!(word, "crate" | "super" | "self") || self.children.contains(word)
    }

    fn uses(&mut self, tree: &[&str], is_export: bool) {
        let mut found = Vec::new();
        branches(tree, &[], &mut found);
        for (path, name) in found {
            if !self.leads(&path[0]) {
                continue;
            }
            if is_export {
                self.exports.insert(name, path);
            } else {
                self.named.insert(path);
            }
        }
    }
}

fn collect(folder: &Path, below: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        let stem = name.trim_end_matches(".rs");
        if stem.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            collect(&path, &format!("{below}{name}/"), files);
        } else if stem.len() < name.len() {
            let text = fs::read_to_string(&path).expect("a text");
            files.push(File::new(format!("{below}{name}"), &text));
        }
    }
}

/// The line from which on there are only tests.
#[must_use]
pub fn tests_begin(lines: &[&str]) -> usize {
    let is_item = |line: &str| line.starts_with(|c: char| c.is_alphabetic());
    for (index, line) in lines.iter().enumerate() {
        if *line == "#[cfg(test)]" {
            let mut items = lines[index..].iter().filter(|line| is_item(line));
            if items.all(|item| item.starts_with("mod ")) {
                return index;
            }
        }
    }
    lines.len()
}

/// The name that a line defines by one of these words; `type` only at the margin, elsewhere it belongs to a trait.
fn defines<'a>(line: &'a str, words: &[&str]) -> Option<&'a str> {
    let mut rest = line.trim_start();
    let at_margin = rest.len() == line.len();
    if let Some(public) = rest.strip_prefix("pub") {
        rest = public.trim_start();
        if rest.starts_with('(') {
            rest = rest.split_once(')')?.1.trim_start();
        }
    }
    let (word, rest) = rest.split_once(' ')?;
    let end = rest.find(|c: char| !is_of_a_word(c)).unwrap_or(rest.len());
    let counts = words.contains(&word) && (word != "type" || at_margin);
    (counts && end > 0).then(|| &rest[..end])
}

fn is_of_a_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text without comments, and without what is in strings and character literals.
fn blanked(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            'r' if rest.starts_with("r\"") => 2 + rest[2..].find('"').map_or(0, |end| end + 1),
            'r' if rest.starts_with("r#\"") => 3 + rest[3..].find("\"#").map_or(0, |end| end + 2),
            '"' => string_end(rest),
            '\'' if rest.starts_with("'\\") => 3 + rest[3..].find('\'').map_or(0, |end| end + 1),
            '\'' if rest.chars().nth(2) == Some('\'') => rest
                .char_indices()
                .nth(3)
                .map_or(rest.len(), |(end, _)| end),
            _ => 0,
        };
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            let lines = rest[..skipped].matches('\n').count();
            code.push_str(&"\n".repeat(lines));
            rest = &rest[skipped..];
        }
    }
    code
}

/// Where the string ends that begins here.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// Identifiers, `::`, and every other character.
fn words(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(c) = rest.chars().next() {
        let word = rest.find(|c: char| !is_of_a_word(c)).unwrap_or(rest.len());
        let len = if rest.starts_with("::") {
            2
        } else {
            word.max(c.len_utf8())
        };
        words.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    words
}

fn path_at(words: &[&str]) -> Vec<String> {
    let mut path = vec![words[0].to_owned()];
    for two in words[1..].chunks(2) {
        if two[0] != "::" || two.len() < 2 || !two[1].starts_with(is_of_a_word) {
            break;
        }
        path.push(two[1].to_owned());
    }
    path
}

/// The paths of a `use` tree, each with the name that it gets.
fn branches(tree: &[&str], above: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let mut path = above.to_vec();
    let mut name = None;
    let mut index = 0;
    while index < tree.len() {
        match tree[index] {
            "{" => {
                for part in parts(&tree[index + 1..]) {
                    branches(part, &path, found);
                }
                return;
            }
            "as" => {
                name = tree.get(index + 1).map(|name| (*name).to_owned());
                break;
            }
            "::" => {}
            word => path.push(word.to_owned()),
        }
        index += 1;
    }
    if let Some(last) = path.last() {
        let name = name.unwrap_or_else(|| last.clone());
        found.push((path, name));
    }
}

/// The parts between a brace that is open and its end, by the commas.
fn parts<'a, 'b>(tree: &'a [&'b str]) -> Vec<&'a [&'b str]> {
    let mut parts = Vec::new();
    let (mut depth, mut begin) = (0, 0);
    for (index, word) in tree.iter().enumerate() {
        match *word {
            "{" => depth += 1,
            "," | "}" if depth == 0 => {
                parts.push(&tree[begin..index]);
                begin = index + 1;
                if *word == "}" {
                    break;
                }
            }
            "}" => depth -= 1,
            _ => {}
        }
    }
    parts
}

fn reached<'a>(imports: &BTreeSet<(&'a str, &'a str)>, first: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![first];
    while let Some(file) = next.pop() {
        for (_, to) in imports
            .range((file, "")..)
            .take_while(|(from, _)| *from == file)
        {
            if reached.insert(*to) {
                next.push(to);
            }
        }
    }
    reached
}
