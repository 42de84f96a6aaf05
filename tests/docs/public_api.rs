//! The public names as a whole: `public-api.txt` lists them, so that a change of the API shows in the diff.
//!
//! The list is made from the sources: what `lib.rs` re-exports is followed to where it is defined. What a macro of the
//! crate implements is listed once, under the macro's name, if its body is plain items.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, ItemImpl, ItemMacro, TraitItem, UseTree, Visibility};

use crate::{root, text};

const LIST: &str = "tests/docs/public-api.txt";

type ModulePath = Vec<String>;

/// The items of each module, by its path from the root of the crate.
#[derive(Default)]
struct Sources(BTreeMap<ModulePath, Vec<Item>>);

/// What a name stands for.
enum Found<'a> {
    Module(ModulePath),
    Item(&'a Item),
    OtherCrate,
}

impl Sources {
    fn read(&mut self, file: &Path, module: ModulePath) {
        let code = fs::read_to_string(file).expect("a source");
        let parsed = syn::parse_file(&code).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let folder = file.parent().expect("a folder");
        let stem = file.file_stem().expect("a name").to_string_lossy();
        let folder = match &*stem {
            "lib" | "mod" => folder.to_owned(),
            own => folder.join(own),
        };
        self.add(&folder, module, parsed.items);
    }

    fn add(&mut self, folder: &Path, module: ModulePath, items: Vec<Item>) {
        for item in &items {
            let Item::Mod(inner) = item else { continue };
            if has(&inner.attrs, "cfg", "test") {
                continue;
            }
            let name = inner.ident.to_string();
            let path = [module.clone(), vec![name.clone()]].concat();
            match &inner.content {
                Some((_, items)) => self.add(&folder.join(&name), path, items.clone()),
                None => self.read(&file_of(folder, &name), path),
            }
        }
        self.0.insert(module, items);
    }

    fn find(&self, module: &[String], name: &str) -> Found<'_> {
        let child = [module, &[name.to_owned()]].concat();
        if self.0.contains_key(&child) {
            return Found::Module(child);
        }
        let items = self.0.get(module).map(Vec::as_slice).unwrap_or_default();
        if let Some(item) = items.iter().find(|item| name_of(item) == Some(name.into())) {
            return Found::Item(item);
        }
        let uses = items.iter().flat_map(used);
        let mut uses = uses.filter(|(_, alias)| alias == name);
        uses.next()
            .map_or(Found::OtherCrate, |(path, _)| self.follow(module, &path))
    }

    fn follow(&self, from: &[String], path: &[String]) -> Found<'_> {
        let mut module = from.to_vec();
        for (place, segment) in path.iter().enumerate() {
            match segment.as_str() {
                "crate" => module.clear(),
                "self" => {}
                "super" => drop(module.pop()),
                // A `use` that names itself is one of another crate.
                name if place == 0 && path.len() == 1 && self.is_use_of_itself(from, name) => {
                    return Found::OtherCrate;
                }
                name => match self.find(&module, name) {
                    Found::Module(found) => module = found,
                    found => return found,
                },
            }
        }
        Found::Module(module)
    }

    fn is_use_of_itself(&self, module: &[String], name: &str) -> bool {
        let child = [module, &[name.to_owned()]].concat();
        !self.0.contains_key(&child)
    }

    fn all(&self) -> impl Iterator<Item = &Item> {
        self.0.values().flatten()
    }
}

fn file_of(folder: &Path, module: &str) -> PathBuf {
    let flat = folder.join(format!("{module}.rs"));
    if flat.exists() {
        flat
    } else {
        folder.join(module).join("mod.rs")
    }
}

/// Whether an attribute of this name mentions the word.
fn has(attributes: &[Attribute], name: &str, word: &str) -> bool {
    let of_name = attributes.iter().filter(|a| a.path().is_ident(name));
    let words = |a: &Attribute| a.meta.to_token_stream().into_iter().flat_map(flattened);
    of_name
        .into_iter()
        .flat_map(words)
        .any(|found| found == word)
}

fn flattened(token: proc_macro2::TokenTree) -> Vec<String> {
    match token {
        proc_macro2::TokenTree::Group(group) => {
            group.stream().into_iter().flat_map(flattened).collect()
        }
        other => vec![other.to_string()],
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        _ => &[],
    }
}

fn is_hidden(item: &Item) -> bool {
    has(attributes(item), "doc", "hidden")
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Struct(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Const(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// What a `use` brings in: each path, and the name that it has here.
fn used(item: &Item) -> Vec<(ModulePath, String)> {
    fn walk(tree: &UseTree, path: &[String], into: &mut Vec<(ModulePath, String)>) {
        let with = |name: String| [path, &[name]].concat();
        match tree {
            UseTree::Path(tree) => walk(&tree.tree, &with(tree.ident.to_string()), into),
            UseTree::Name(tree) => {
                into.push((with(tree.ident.to_string()), tree.ident.to_string()));
            }
            UseTree::Rename(tree) => {
                into.push((with(tree.ident.to_string()), tree.rename.to_string()));
            }
            UseTree::Group(tree) => tree.items.iter().for_each(|tree| walk(tree, path, into)),
            UseTree::Glob(_) => {}
        }
    }
    let mut names = Vec::new();
    if let Item::Use(item) = item {
        walk(&item.tree, &[], &mut names);
    }
    names
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Tokens as a person writes them.
fn shown(tokens: impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, tight) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" < ", "<"),
        (" > ", "> "),
        (" >", ">"),
        (" <", "<"),
        ("< ", "<"),
        (" ,", ","),
        (" :", ":"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("& ", "&"),
        (" ;", ";"),
        ("[ ", "["),
        (" ]", "]"),
        (",)", ")"),
        (",>", ">"),
        ("> (", ">("),
        ("->", " -> "),
        ("->  ", "-> "),
        ("->(", "-> ("),
        ("  ", " "),
        ("? ", "?"),
        ("> >", ">>"),
        ("mut self", "self"),
        ("#[must_use] ", ""),
    ] {
        text = text.replace(spaced, tight);
    }
    text.trim().to_owned()
}

/// The public names, and the lines that describe them.
#[derive(Default)]
struct Api {
    names: BTreeSet<String>,
    lines: BTreeSet<String>,
    /// Documentation, each with what it documents.
    docs: Vec<(String, String)>,
}

impl Api {
    /// Adds what the module re-exports under its name in the crate.
    fn exports(&mut self, sources: &Sources, module: &[String], prefix: &str) {
        let items = &sources.0[module];
        let public = items.iter().filter(|item| match item {
            Item::Use(item) => is_public(&item.vis) && !has(&item.attrs, "doc", "hidden"),
            _ => false,
        });
        for (path, alias) in public.flat_map(used) {
            let name = format!("{prefix}{alias}");
            match sources.follow(module, &path) {
                Found::Module(inner) => {
                    self.lines.insert(format!("mod {name}"));
                    self.exports(sources, &inner, &format!("{name}::"));
                }
                Found::Item(item) => self.item(&name, item),
                Found::OtherCrate => drop(self.lines.insert(format!("use {}", path.join("::")))),
            }
        }
    }

    fn item(&mut self, name: &str, item: &Item) {
        let own = name_of(item).expect("an item with a name");
        self.names.insert(own);
        self.document(name, attributes(item));
        let head = match item {
            Item::Struct(item) => {
                self.fields(name, &item.fields);
                format!("struct {name}{}", shown(&item.generics))
            }
            Item::Enum(item) => {
                for mut variant in item.variants.clone() {
                    self.document(name, &variant.attrs);
                    variant
                        .fields
                        .iter_mut()
                        .for_each(|field| field.attrs.clear());
                    let (ident, fields) = (&variant.ident, shown(&variant.fields));
                    self.lines
                        .insert(format!("{name}: {ident} {fields}").trim().into());
                }
                format!("enum {name}{}", shown(&item.generics))
            }
            Item::Trait(item) => {
                for member in &item.items {
                    self.member(name, member);
                }
                let bounds = shown(&item.supertraits);
                format!("trait {name}{}: {bounds}", shown(&item.generics))
            }
            Item::Type(item) => {
                format!("type {name}{} = {}", shown(&item.generics), shown(&item.ty))
            }
            Item::Fn(item) => shown(&item.sig),
            Item::Const(item) => format!("const {name}: {}", shown(&item.ty)),
            _ => return,
        };
        self.lines.insert(head);
        for derived in attributes(item)
            .iter()
            .filter(|a| a.path().is_ident("derive"))
        {
            let list = derived
                .meta
                .require_list()
                .expect("a list")
                .tokens
                .to_string();
            for derived in list.split(',') {
                let derived = derived.rsplit("::").next().unwrap_or_default().trim();
                self.lines.insert(format!("{name}: derive {derived}"));
            }
        }
        if attributes(item)
            .iter()
            .any(|a| a.path().is_ident("non_exhaustive"))
        {
            self.lines.insert(format!("{name}: non_exhaustive"));
        }
    }

    fn document(&mut self, of: &str, attributes: &[Attribute]) {
        let docs = attributes.iter().filter(|a| a.path().is_ident("doc"));
        let values = docs.filter_map(|a| Some(shown(&a.meta.require_name_value().ok()?.value)));
        let text: Vec<_> = values.collect();
        self.docs.push((of.to_owned(), text.join("\n")));
    }

    fn fields(&mut self, name: &str, fields: &Fields) {
        for field in fields.iter().filter(|field| is_public(&field.vis)) {
            self.document(name, &field.attrs);
            let ident = field.ident.as_ref().map_or("0".into(), ToString::to_string);
            self.lines
                .insert(format!("{name}: {ident}: {}", shown(&field.ty)));
        }
    }

    fn member(&mut self, name: &str, member: &TraitItem) {
        let line = match member {
            TraitItem::Fn(function) => {
                self.document(name, &function.attrs);
                let by_default = function.default.as_ref().map_or("", |_| " { default }");
                format!("{name}: {}{by_default}", shown(&function.sig))
            }
            TraitItem::Type(associated) => {
                let bounds = shown(&associated.bounds);
                format!("{name}: type {}: {bounds}", associated.ident)
            }
            TraitItem::Const(constant) => {
                format!("{name}: const {}: {}", constant.ident, shown(&constant.ty))
            }
            _ => return,
        };
        self.lines.insert(line);
    }

    /// Whether one of the public types is named in it.
    fn names_one(&self, text: &str) -> bool {
        words(text).any(|word| self.names.contains(word))
    }

    /// `hidden`: the types and traits of the crate that are not public.
    fn implementation(&mut self, block: &ItemImpl, of: &str, hidden: &BTreeSet<String>) {
        let Some((path, _)) = &block.trait_ else {
            for item in &block.items {
                let line = match item {
                    ImplItem::Fn(item)
                        if is_public(&item.vis) && !has(&item.attrs, "doc", "hidden") =>
                    {
                        self.document(&format!("{of}::{}", item.sig.ident), &item.attrs);
                        shown(&item.sig)
                    }
                    ImplItem::Const(item) if is_public(&item.vis) => {
                        format!("const {}: {}", item.ident, shown(&item.ty))
                    }
                    _ => continue,
                };
                self.lines.insert(format!("{of}: {line}"));
            }
            return;
        };
        let (generics, path) = (shown(&block.generics), shown(path));
        if words(&path).any(|word| hidden.contains(word)) {
            return;
        }
        self.lines.insert(format!("{of}: impl{generics} {path}"));
    }

    fn implementations(&mut self, sources: &Sources) {
        let named = sources.all().filter_map(name_of);
        let hidden: BTreeSet<_> = named.filter(|name| !self.names.contains(name)).collect();
        for item in sources.all() {
            match item {
                Item::Impl(block) if !is_hidden(item) => {
                    let of = shown(&block.self_ty);
                    let own = of.split('<').next().unwrap_or_default();
                    let by_trait = block.trait_.as_ref().is_some_and(|(path, _)| {
                        self.names_one(&of) || self.names_one(&shown(path))
                    });
                    let inherent = own.rsplit("::").next().unwrap_or_default();
                    if by_trait || block.trait_.is_none() && self.names.contains(inherent) {
                        self.implementation(block, &of, &hidden);
                    }
                }
                Item::Macro(item) => self.macro_of_items(item, &hidden),
                _ => {}
            }
        }
    }

    /// A macro of ours: what it implements, and for which types.
    fn macro_of_items(&mut self, item: &ItemMacro, hidden: &BTreeSet<String>) {
        let Some(name) = &item.ident else {
            let arguments = shown(&item.mac.tokens);
            if self.names_one(&arguments) {
                let name = shown(&item.mac.path);
                self.lines.insert(format!("{name}!({arguments})"));
            }
            return;
        };
        let definition = item.mac.tokens.to_string();
        let Some((_, body)) = definition.split_once("=> {") else {
            return;
        };
        let body = body.rsplit_once('}').map_or(body, |(body, _)| body);
        let Ok(parsed) = syn::parse_str::<syn::File>(&body.replace('$', "")) else {
            return;
        };
        for block in parsed.items {
            if let Item::Impl(block) = &block {
                self.implementation(block, &format!("{name}!"), hidden);
            }
        }
    }

    fn features(&mut self) {
        let manifest = text("Cargo.toml");
        let (_, features) = manifest.split_once("\n[features]\n").expect("features");
        let lines = features.lines().take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| Some(line.split_once(" = ")?.0));
        let public = names.filter(|name| !name.starts_with("__"));
        self.lines
            .extend(public.map(|name| format!("feature {name}")));
    }
}

fn public_api() -> Api {
    let mut sources = Sources::default();
    sources.read(&root().join("src/lib.rs"), Vec::new());
    let mut api = Api::default();
    api.exports(&sources, &[], "");
    api.implementations(&sources);
    api.features();
    api
}

#[test]
fn the_public_api_is_the_one_that_is_written_down() {
    let lines: Vec<_> = public_api().lines.into_iter().collect();
    let now = lines.join("\n") + "\n";
    if std::env::var_os("UPDATE_API").is_some() {
        fs::write(root().join(LIST), &now).expect("it can be written");
        return;
    }
    let then = fs::read_to_string(root().join(LIST)).unwrap_or_default();
    let (now, then): (BTreeSet<_>, BTreeSet<_>) = (now.lines().collect(), then.lines().collect());
    let gone = then.difference(&now).map(|line| format!("- {line}\n"));
    let new = now.difference(&then).map(|line| format!("+ {line}\n"));
    let changes: String = gone.chain(new).collect();
    assert!(
        changes.is_empty(),
        "the public API has changed. If that is meant, write the list anew and commit it, with a line in CHANGELOG.md \
         for what a user notices: UPDATE_API=1 cargo test --test docs public_api\n{changes}"
    );
    assert!(now.len() > 300, "the items were found: {}", now.len());
}

/// Words of ARCHITECTURE.md that no user needs.
const PRIVATE_WORDS: [&str; 9] = [
    "gate", "ticket", "lane", "keeper", "steward", "seat", "fleet", "tray", "reaper",
];

#[test]
fn no_public_page_has_private_words() {
    let api = public_api();
    for (of, docs) in &api.docs {
        for word in words(docs).map(str::to_lowercase) {
            let singular = word.trim_end_matches('s');
            assert!(!PRIVATE_WORDS.contains(&singular), "{of}: {word}");
        }
    }
    assert!(
        api.docs.len() > 250,
        "the documentation was found: {}",
        api.docs.len()
    );
}
