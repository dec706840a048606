//! Names: from a path to the file that defines what it names.

use syn::Item;

use super::imports::expand;
use super::tree::{ModulePath, SourceTree};

/// The meaning of a name in a module.
enum Meaning {
    Defined,
    Module,
    Imported(Vec<String>),
}

impl SourceTree {
    /// Returns the file that defines what a path names, as written in a module. `None`: it is another crate's, or no
    /// name of a module.
    pub(crate) fn resolve(&self, module: &ModulePath, path: &[String]) -> Option<usize> {
        let absolute = self.absolute(module, path)?;
        self.find(&absolute, 0)
    }

    /// Returns a path from the crate's root.
    fn absolute(&self, module: &ModulePath, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let mut at = module.clone();
                let mut rest = path;
                while let Some(("super", below)) =
                    rest.split_first().map(|(first, below)| (first.as_str(), below))
                {
                    at.pop()?;
                    rest = below;
                }
                Some([&at[..], rest].concat())
            }
            name => {
                self.meaning(module, name)?;
                Some([module, path].concat())
            }
        }
    }

    /// Returns the file of what an absolute path names, following imports.
    fn find(&self, path: &[String], followed: u32) -> Option<usize> {
        if followed > 16 {
            return None;
        }
        let depth = (0..=path.len()).rev().find(|n| self.modules.contains_key(&path[..*n]))?;
        let (module, rest) = (path[..depth].to_vec(), &path[depth..]);
        let Some((name, below)) = rest.split_first() else {
            return Some(self.modules[&module].file);
        };
        if name == "*" {
            return Some(self.modules[&module].file);
        }
        match self.meaning(&module, name)? {
            Meaning::Defined | Meaning::Module => Some(self.modules[&module].file),
            Meaning::Imported(target) => {
                let target = self.absolute(&module, &target)?;
                let target = [&target[..], below].concat();
                if target == path { None } else { self.find(&target, followed + 1) }
            }
        }
    }

    fn meaning(&self, module: &ModulePath, name: &str) -> Option<Meaning> {
        self.modules.get(module)?.items.iter().find_map(|item| match item {
            Item::Use(import) => {
                let all = expand(&import.tree);
                let named = all.into_iter().find(|(path, alias)| {
                    // A name imported as itself, from outside the crate, names nothing here.
                    alias == name && path.len() > 1
                });
                named.map(|(path, _)| Meaning::Imported(path))
            }
            Item::Mod(item) => (item.ident == name).then_some(Meaning::Module),
            other => (defined(other).as_deref() == Some(name)).then_some(Meaning::Defined),
        })
    }
}

/// Returns the name that an item defines.
fn defined(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
