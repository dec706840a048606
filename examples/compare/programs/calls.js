// Calls of functions that the compiler optimizes, and of built-in ones.
function leaf(value) {
    for (let i = 0; i < 20000; i++) value = Math.imul(value ^ (value >>> 7), 0x9e3779b1) | 1;
    return value;
}
function middle(value, depth) {
    if (depth > 0) return (middle(value, depth - 1) + 1) | 0;
    return (leaf(value) + 1) | 0;
}
function outer(value) {
    return (middle(value, 10) + 1) | 0;
}
function sorts(values) {
    values.sort((one, other) => one - other);
    return values[0];
}
function rounds(count) {
    let sum = 1;
    for (let i = 0; i < count; i++) {
        sum = (sum + outer(sum)) | 0;
        if (i % 20 === 0) sum ^= sorts(Array.from({ length: 2000 }, (_, place) => (place * 7919) % 2003));
    }
    return sum;
}
console.log(rounds(30000));
