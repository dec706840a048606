//! Faces: modules whose files are in a folder beside their own.

use syn::{Item, Visibility};

use super::imports::expand;
use super::tree::SourceTree;

impl SourceTree {
    /// Returns the files of faces that define something, rather than hand on what their folders' files define. The
    /// root is none.
    pub(crate) fn faces_that_define(&self) -> Vec<&str> {
        let faces = self.modules.iter().filter(|(path, module)| module.is_face && !path.is_empty());
        let define = |item: &Item| !matches!(item, Item::Mod(_) | Item::Use(_));
        faces
            .filter(|(_, module)| module.items.iter().any(define))
            .map(|(_, module)| self.files[module.file].as_str())
            .collect()
    }

    /// Returns the imports from a face or the root, a line each, in place of the file that defines what is imported.
    pub(crate) fn imports_from_faces(&self) -> Vec<String> {
        let mut lines = vec![];
        for (path, module) in &self.modules {
            for item in &module.items {
                let Item::Use(import) = item else { continue };
                if module.is_face && !matches!(import.vis, Visibility::Inherited) {
                    continue;
                }
                for (target, _) in expand(&import.tree) {
                    // A macro may define it, which is not read.
                    let Some(defining) = self.resolve(path, &target) else { continue };
                    if self.module_of(path, &target) != Some(defining) {
                        lines.push(format!("{}: {}", self.files[module.file], target.join("::")));
                    }
                }
            }
        }
        lines
    }
}
