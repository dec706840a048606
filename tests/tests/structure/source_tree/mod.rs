//! A crate's source as a graph: its files, and which of them use which. A name is resolved through re-exports to the
//! file that defines it, so that an import through the crate's root hides nothing.

mod faces;
mod methods;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta, UseTree};

/// A module's path within its crate; the root's is empty.
pub(crate) type ModulePath = Vec<String>;

/// A module: its items, without those of tests, and the file that holds it.
pub(crate) struct Module {
    pub(crate) file: usize,
    pub(crate) items: Vec<Item>,
    /// It has modules in files of their own.
    pub(crate) is_face: bool,
}

/// A crate's source.
pub(crate) struct SourceTree {
    /// Names of the files.
    pub(crate) files: Vec<String>,
    pub(crate) modules: BTreeMap<ModulePath, Module>,
}

/// The files that each file uses, by numbers, with the names by which it does.
pub(crate) type Uses = BTreeMap<usize, BTreeMap<usize, BTreeSet<String>>>;

impl SourceTree {
    /// Reads the crate whose root file this is.
    pub(crate) fn read(root: &Path) -> Self {
        let mut tree = Self { files: vec![], modules: BTreeMap::new() };
        let folder = root.parent().unwrap();
        tree.read_file(folder, root, folder, vec![]);
        tree
    }

    /// Reads a module's file; those of its modules are in `below`.
    fn read_file(&mut self, source: &Path, file: &Path, below: &Path, path: ModulePath) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{file:?}: {e}"));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{file:?}: {e}"));
        let name = file.strip_prefix(source).unwrap_or(file).to_str().unwrap().to_owned();
        self.files.push(name);
        let folders = [file.parent().unwrap(), below];
        self.read_module(source, self.files.len() - 1, parsed.items, folders, path);
    }

    /// Reads a module's items, and the modules among them: of two folders, the files that `#[path]` names are in the
    /// first, and others in the second.
    fn read_module(
        &mut self,
        source: &Path,
        file: usize,
        items: Vec<Item>,
        [beside, below]: [&Path; 2],
        path: ModulePath,
    ) {
        let items: Vec<Item> =
            items.into_iter().filter(|item| !is_test(attributes(item))).collect();
        let mut is_face = false;
        for item in &items {
            let Item::Mod(ItemMod { ident, content, .. }) = item else { continue };
            let name = ident.to_string();
            let path = [&path[..], core::slice::from_ref(&name)].concat();
            let elsewhere = path_attribute(attributes(item)).map(|named| beside.join(named));
            if let Some((_, items)) = content {
                let folder = elsewhere.unwrap_or_else(|| below.join(&name));
                self.read_module(source, file, items.clone(), [&folder; 2], path);
                continue;
            }
            is_face = true;
            if let Some(file) = elsewhere {
                self.read_file(source, &file, file.parent().unwrap(), path);
                continue;
            }
            let folder = below.join(&name);
            let plain = below.join(format!("{name}.rs"));
            let within = folder.join("mod.rs");
            let file: PathBuf = if plain.is_file() { plain } else { within };
            if file.is_file() {
                self.read_file(source, &file, &folder, path);
            }
        }
        self.modules.insert(path, Module { file, items, is_face });
    }

    /// Returns which files use which: by imports and paths, and by calls of methods of their own types.
    pub(crate) fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (path, module) in &self.modules {
            let mut add = |used: usize, name: &str| {
                if used != module.file {
                    let names = uses.entry(module.file).or_default().entry(used).or_default();
                    names.insert(name.to_owned());
                }
            };
            for item in &module.items {
                match item {
                    Item::Mod(_) => {}
                    Item::Use(import) => {
                        // A face hands on what its rooms define.
                        let is_public = !matches!(import.vis, syn::Visibility::Inherited);
                        for (target, _) in expand(&import.tree) {
                            let Some(found) = self.resolve(path, &target) else { continue };
                            let hands_on = is_public && module.is_face;
                            if !hands_on {
                                add(found, target.last().unwrap());
                            }
                        }
                    }
                    _ => {
                        for target in paths(item.to_token_stream()) {
                            if let Some(found) = self.resolve(path, &target) {
                                add(found, target.last().unwrap());
                            }
                        }
                    }
                }
            }
        }
        for (file, used, name) in self.method_calls() {
            if used != file {
                uses.entry(file).or_default().entry(used).or_default().insert(name + "()");
            }
        }
        uses
    }
}

/// Returns the circles of files: the sets of more than one that use each other, by Tarjan's algorithm.
pub(crate) fn circles(uses: &Uses, files: usize) -> Vec<Vec<usize>> {
    struct Search<'a> {
        uses: &'a Uses,
        /// Number in the order of visits, and the lowest that is reached.
        seen: Vec<Option<(usize, usize)>>,
        stack: Vec<usize>,
        visited: usize,
        circles: Vec<Vec<usize>>,
    }
    impl Search<'_> {
        fn visit(&mut self, file: usize) -> usize {
            let number = self.visited;
            self.visited += 1;
            self.seen[file] = Some((number, number));
            self.stack.push(file);
            let mut lowest = number;
            for used in self.uses.get(&file).into_iter().flat_map(BTreeMap::keys) {
                match self.seen[*used] {
                    None => lowest = lowest.min(self.visit(*used)),
                    Some((order, _)) if self.stack.contains(used) => lowest = lowest.min(order),
                    Some(_) => {}
                }
            }
            if lowest == number {
                let at = self.stack.iter().position(|of| *of == file).unwrap();
                let circle = self.stack.split_off(at);
                if circle.len() > 1 {
                    self.circles.push(circle);
                }
            }
            lowest
        }
    }
    let seen = vec![None; files];
    let mut search = Search { uses, seen, stack: vec![], visited: 0, circles: vec![] };
    for file in 0..files {
        if search.seen[file].is_none() {
            search.visit(file);
        }
    }
    search.circles
}

/// Returns each name of an import, as a path, and the name that it has afterwards.
pub(crate) fn expand(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    fn descend(tree: &UseTree, prefix: &[String], all: &mut Vec<(Vec<String>, String)>) {
        let with = |name: String| [prefix, &[name]].concat();
        match tree {
            UseTree::Path(path) => descend(&path.tree, &with(path.ident.to_string()), all),
            UseTree::Group(group) => group.items.iter().for_each(|tree| descend(tree, prefix, all)),
            UseTree::Name(name) if name.ident == "self" => {
                all.extend(prefix.last().map(|last| (prefix.to_vec(), last.clone())));
            }
            UseTree::Name(name) => all.push((with(name.ident.to_string()), name.ident.to_string())),
            UseTree::Rename(rename) => {
                let path = match rename.ident.to_string() {
                    name if name == "self" => prefix.to_vec(),
                    name => with(name),
                };
                all.push((path, rename.rename.to_string()));
            }
            UseTree::Glob(_) => all.push((with("*".to_owned()), "*".to_owned())),
        }
    }
    let mut all = vec![];
    descend(tree, &[], &mut all);
    all
}

/// Returns the paths of more than one name in these tokens, those within macros' too.
fn paths(tokens: TokenStream) -> Vec<Vec<String>> {
    let mut all = vec![];
    let mut path: Vec<String> = vec![];
    let mut colons = 0;
    let mut finish = |path: &mut Vec<String>| {
        if path.len() > 1 {
            all.push(core::mem::take(path));
        }
        path.clear();
    };
    let mut groups = vec![];
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                if colons != 2 {
                    finish(&mut path);
                }
                path.push(ident.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Group(group) => {
                finish(&mut path);
                colons = 0;
                groups.push(group.stream());
            }
            _ => {
                finish(&mut path);
                colons = 0;
            }
        }
    }
    finish(&mut path);
    all.extend(groups.into_iter().flat_map(paths));
    all
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string();
        attribute.path().is_ident("cfg") && (text.contains("test") || text.contains("(loom"))
    })
}

/// Returns the file that `#[path = "…"]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("path") => match &meta.value {
            Expr::Lit(ExprLit { lit: Lit::Str(file), .. }) => Some(file.value()),
            _ => None,
        },
        _ => None,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
