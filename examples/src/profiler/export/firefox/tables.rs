//! The tables of a thread, of which each has a column for each member, and names rows of others by their numbers.

use std::collections::HashMap;

use serde::Serialize;

use crate::profiler::call_stacks::StackSample;
use crate::profiler::graph::Graph;
use crate::profiler::symbols::Location;

/// The category of user code; the kernel's follows.
pub(super) const USER: usize = 1;

/// The type of a resource that is a file of code.
const LIBRARY: u32 = 1;

/// The tables of a thread.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tables<'g> {
    samples: Samples,
    stack_table: Stacks,
    frame_table: Frames,
    func_table: Functions,
    native_symbols: NativeSymbols,
    resource_table: Resources,
    string_array: Vec<String>,
    #[serde(skip)]
    graph: &'g Graph,
    #[serde(skip)]
    known: Known,
}

/// The rows that are there already.
#[derive(Default)]
struct Known {
    /// By the stack of the graph.
    stacks: HashMap<usize, usize>,
    /// By the caller's row and the frame's.
    rows: HashMap<(Option<usize>, usize), usize>,
    /// By the graph's place and the number of the frame there.
    frames: HashMap<(usize, usize), usize>,
    functions: HashMap<(usize, Option<usize>, Option<usize>), usize>,
    symbols: HashMap<(usize, u64), usize>,
    resources: HashMap<usize, usize>,
    strings: HashMap<String, usize>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Samples {
    length: usize,
    weight_type: &'static str,
    stack: Vec<usize>,
    /// In milliseconds, as all times.
    time: Vec<f64>,
    weight: Vec<u32>,
    #[serde(rename = "threadCPUDelta")]
    consumed: Vec<u64>,
}

#[derive(Default, Serialize)]
struct Stacks {
    length: usize,
    prefix: Vec<Option<usize>>,
    frame: Vec<usize>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Frames {
    length: usize,
    /// -1 of what is in no file.
    address: Vec<i64>,
    /// 0 of the function's own frame, from which inlined ones count.
    inline_depth: Vec<usize>,
    category: Vec<usize>,
    subcategory: Vec<usize>,
    func: Vec<usize>,
    native_symbol: Vec<Option<usize>>,
    #[serde(rename = "innerWindowID")]
    window: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Functions {
    length: usize,
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    /// -1: none.
    resource: Vec<i64>,
    file_name: Vec<Option<usize>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    length: usize,
    address: Vec<u64>,
    function_size: Vec<u64>,
    lib_index: Vec<usize>,
    name: Vec<usize>,
}

#[derive(Default, Serialize)]
struct Resources {
    length: usize,
    lib: Vec<usize>,
    name: Vec<usize>,
    host: Vec<Option<usize>>,
    #[serde(rename = "type")]
    kind: Vec<u32>,
}

/// Returns the number of the next row, and counts it.
fn row(length: &mut usize) -> usize {
    *length += 1;
    *length - 1
}

impl<'g> Tables<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self {
            samples: Samples { weight_type: "samples", ..Samples::default() },
            stack_table: Stacks::default(),
            frame_table: Frames::default(),
            func_table: Functions::default(),
            native_symbols: NativeSymbols::default(),
            resource_table: Resources::default(),
            string_array: Vec::new(),
            graph,
            known: Known::default(),
        }
    }

    /// Adds a sample that is not older than those before; times count from `origin`.
    pub(super) fn add(&mut self, sample: &StackSample, origin: u64, consumed: u64) {
        let stack = self.stack(sample.stack);
        let samples = &mut self.samples;
        row(&mut samples.length);
        samples.stack.push(stack);
        samples.time.push(sample.time.saturating_sub(origin) as f64 / 1e6);
        samples.weight.push(sample.interrupts);
        samples.consumed.push(consumed);
    }

    fn stack(&mut self, stack: usize) -> usize {
        if let Some(known) = self.known.stacks.get(&stack) {
            return *known;
        }
        let mut caller = None;
        for place in &self.graph.place_stacks[stack] {
            for depth in 0..self.graph.places[*place].frames.len() {
                let frame = self.frame(*place, depth);
                let table = &mut self.stack_table;
                let next = *self.known.rows.entry((caller, frame)).or_insert_with(|| {
                    table.prefix.push(caller);
                    table.frame.push(frame);
                    row(&mut table.length)
                });
                caller = Some(next);
            }
        }
        // No stack is without a place, and no place without a frame.
        let row = caller.unwrap_or(0);
        self.known.stacks.insert(stack, row);
        row
    }

    fn frame(&mut self, place: usize, depth: usize) -> usize {
        if let Some(known) = self.known.frames.get(&(place, depth)) {
            return *known;
        }
        let named = &self.graph.places[place];
        let frame = &self.graph.frames[named.frames[depth]];
        let line = frame.frame.line.as_ref();
        let file = line.map(|(path, _)| self.string(path));
        let resource = named.location.as_ref().map(|_| self.resource(named.module));
        let name = match resource {
            None if !frame.frame.name.starts_with('[') => {
                self.string(&format!("{} ({})", frame.frame.name, frame.module))
            }
            _ => self.string(&frame.frame.name),
        };
        let function = self.function(name, resource, file);
        let symbol = named.location.as_ref().and_then(|at| self.symbol(named.module, at, place));
        let address = named.location.as_ref().and_then(|at| i64::try_from(at.address).ok());
        let table = &mut self.frame_table;
        table.address.push(address.unwrap_or(-1));
        table.inline_depth.push(depth);
        table.category.push(USER + usize::from(frame.kernel));
        table.subcategory.push(0);
        table.func.push(function);
        table.native_symbol.push(symbol);
        table.window.push(0);
        table.line.push(line.map(|(_, line)| *line));
        table.column.push(None);
        let row = row(&mut table.length);
        self.known.frames.insert((place, depth), row);
        row
    }

    fn function(&mut self, name: usize, resource: Option<usize>, file: Option<usize>) -> usize {
        let table = &mut self.func_table;
        *self.known.functions.entry((name, resource, file)).or_insert_with(|| {
            table.name.push(name);
            table.is_js.push(false);
            table.relevant_for_js.push(false);
            table.resource.push(resource.map_or(-1, |resource| resource as i64));
            table.file_name.push(file);
            table.line_number.push(None);
            table.column_number.push(None);
            row(&mut table.length)
        })
    }

    /// The symbol at a place, which is named as the outermost frame there.
    fn symbol(&mut self, module: usize, location: &Location, place: usize) -> Option<usize> {
        let extent = location.function.as_ref()?;
        if let Some(known) = self.known.symbols.get(&(module, extent.start)) {
            return Some(*known);
        }
        let own = *self.graph.places[place].frames.first()?;
        let name = self.string(&self.graph.frames[own].frame.name);
        let table = &mut self.native_symbols;
        table.address.push(extent.start);
        table.function_size.push(extent.end - extent.start);
        table.lib_index.push(module);
        table.name.push(name);
        let row = row(&mut table.length);
        self.known.symbols.insert((module, extent.start), row);
        Some(row)
    }

    fn resource(&mut self, module: usize) -> usize {
        if let Some(known) = self.known.resources.get(&module) {
            return *known;
        }
        let name = self.string(&self.graph.modules[module].label);
        let table = &mut self.resource_table;
        table.lib.push(module);
        table.name.push(name);
        table.host.push(None);
        table.kind.push(LIBRARY);
        let row = row(&mut table.length);
        self.known.resources.insert(module, row);
        row
    }

    fn string(&mut self, text: &str) -> usize {
        if let Some(known) = self.known.strings.get(text) {
            return *known;
        }
        self.string_array.push(text.into());
        let index = self.string_array.len() - 1;
        self.known.strings.insert(text.into(), index);
        index
    }
}
