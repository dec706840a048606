//! Names of imports.

use syn::UseTree;

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
