//! Calls of methods: which file's `impl` of a type calls a method that another file's `impl` of it defines.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, ExprPath, ImplItem, Item, ItemImpl, Type};

use super::tree::SourceTree;

/// A type, by the file that defines it and its name.
type Named = (usize, String);

impl SourceTree {
    /// Returns each call of a method on the caller's own type: the caller's file, the method's, and its name.
    pub(crate) fn method_calls(&self) -> Vec<(usize, usize, String)> {
        let impls: Vec<(usize, Named, &ItemImpl)> = self
            .modules
            .iter()
            .flat_map(|(path, module)| module.items.iter().map(move |item| (path, module, item)))
            .filter_map(|(path, module, item)| {
                let Item::Impl(item) = item else { return None };
                let Type::Path(of) = &*item.self_ty else { return None };
                let segments: Vec<String> =
                    of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
                let file = self.resolve(path, &segments)?;
                Some((module.file, (file, segments.last()?.clone()), item))
            })
            .collect();
        let mut methods: BTreeMap<(&Named, String), usize> = BTreeMap::new();
        for (file, of, item) in impls.iter().filter(|(_, _, item)| item.trait_.is_none()) {
            for method in &item.items {
                if let ImplItem::Fn(method) = method {
                    methods.insert((of, method.sig.ident.to_string()), *file);
                }
            }
        }
        let mut all = vec![];
        for (file, of, item) in &impls {
            let mut calls = Calls(vec![]);
            calls.visit_item_impl(item);
            for name in calls.0 {
                if let Some(used) = methods.get(&(of, name.clone())) {
                    all.push((*file, *used, name));
                }
            }
        }
        all
    }
}

/// Names of methods that are called on `self`, or as `Self::name`.
struct Calls(Vec<String>);

impl<'a> Visit<'a> for Calls {
    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        if let Expr::Path(receiver) = &*call.receiver
            && receiver.path.is_ident("self")
        {
            self.0.push(call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'a ExprPath) {
        let segments = &path.path.segments;
        if segments.len() == 2 && segments[0].ident == "Self" {
            self.0.push(segments[1].ident.to_string());
        }
        visit::visit_expr_path(self, path);
    }
}
