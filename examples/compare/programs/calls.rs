//! Calls of functions, closures, trait objects and another thread: `main` calls `rounds` and `threaded`.

use std::hint::black_box;

trait Work {
    fn work(&self, value: u64) -> u64;
}

struct Mixes;

impl Work for Mixes {
    #[inline(never)]
    fn work(&self, value: u64) -> u64 {
        leaf(value) + 1
    }
}

#[inline(never)]
fn leaf(mut value: u64) -> u64 {
    for _ in 0..20_000 {
        value = black_box((value ^ (value >> 7)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
    value | 1
}

#[inline(never)]
fn dispatches(work: &dyn Work, value: u64) -> u64 {
    black_box(work.work(value)) ^ 1
}

#[inline(never)]
fn sorts(values: &mut Vec<u64>) -> u64 {
    values.iter_mut().rev().for_each(|value| *value = value.wrapping_mul(6_364_136_223_846_793_005));
    values.sort_unstable_by(|one, other| compares(*one, *other));
    black_box(values[0])
}

#[inline(never)]
fn compares(one: u64, other: u64) -> std::cmp::Ordering {
    black_box(one).cmp(&black_box(other))
}

#[inline(never)]
fn rounds(count: u64) -> u64 {
    let mut values: Vec<u64> = (0..1000).collect();
    let mut sum = 0;
    for round in 0..count {
        sum ^= dispatches(black_box(&Mixes), round);
        sum ^= sorts(&mut values);
    }
    black_box(sum)
}

#[inline(never)]
fn threaded() -> u64 {
    let thread = std::thread::spawn(|| in_thread(12_000));
    black_box(thread.join().unwrap())
}

#[inline(never)]
fn in_thread(count: u64) -> u64 {
    let mut sum = 0;
    for round in 0..count {
        sum ^= leaf(round);
    }
    black_box(sum)
}

fn main() {
    println!("{}", rounds(14_000) ^ threaded());
}
