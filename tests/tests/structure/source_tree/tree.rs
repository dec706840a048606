//! The modules of a crate, read from its files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

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
