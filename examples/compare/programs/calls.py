"""Calls of the interpreter: functions, sorting and a dictionary."""


def leaf(count):
    total = 0
    for number in range(count):
        total += number * number % 7
    return total


def middle(depth):
    return middle(depth - 1) + 1 if depth else leaf(2000) + 1


def sorts(values):
    return sorted(values, key=lambda value: (value * 7919) % 5003)[0]


def counts(text):
    found = {}
    for letter in text:
        found[letter] = found.get(letter, 0) + 1
    return len(found)


def main():
    total = 0
    for number in range(4000):
        total += middle(10)
        total += sorts(list(range(500)))
        total += counts("a profile of an interpreter" * 20)
    print(total)


main()
