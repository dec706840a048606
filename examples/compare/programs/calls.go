// Calls in a goroutine and in the main one, with work of the runtime: allocation and maps.
package main

import "fmt"

//go:noinline
func leaf(value uint64) uint64 {
	for i := 0; i < 20000; i++ {
		value = (value ^ (value >> 7)) * 0x9E3779B97F4A7C15
	}
	return value
}

//go:noinline
func middle(value uint64, depth int) uint64 {
	if depth > 0 {
		return middle(value, depth-1) + 1
	}
	return leaf(value) + 1
}

//go:noinline
func outer(value uint64) uint64 { return middle(value, 10) + 1 }

//go:noinline
func fills(count int) int {
	counts := map[int]int{}
	for i := 0; i < count; i++ {
		counts[i*7919%5003] += i
	}
	return len(counts)
}

//go:noinline
func inGoroutine(count int, done chan uint64) {
	sum := uint64(1)
	for i := 0; i < count; i++ {
		sum += outer(sum)
	}
	done <- sum
}

func main() {
	done := make(chan uint64)
	go inGoroutine(20000, done)
	sum := 0
	for i := 0; i < 100; i++ {
		sum += fills(200000)
	}
	for i := 0; i < 10000; i++ {
		sum += int(outer(uint64(i)) & 1)
	}
	fmt.Println(sum, <-done)
}
