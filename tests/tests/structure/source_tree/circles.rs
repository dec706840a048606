//! Circles of files.

use std::collections::BTreeMap;

use super::uses::Uses;

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
