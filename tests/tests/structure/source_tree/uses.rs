//! Uses of files by files: imports, paths, and calls of methods.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::Item;

use super::imports::expand;
use super::tree::SourceTree;

/// The files that each file uses, by numbers, with the names by which it does.
pub(crate) type Uses = BTreeMap<usize, BTreeMap<usize, BTreeSet<String>>>;

impl SourceTree {
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
