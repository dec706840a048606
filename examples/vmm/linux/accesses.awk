# Counts accesses per operation in a trace of the monitor (`--trace msr`), where operations.c marks them by number:
#   awk -v machine=NAME -f accesses.awk TRACE
# prints lines "machine,operation,accesses". An operation's accesses are those between its mark and the next mark; an
# interrupt's are those from its arrival to that of the next one. Threads of the kernel and its ticks may come in between:
# so the fewest are printed, of interrupts those that came twice, since a second one may arrive early.
BEGIN {
    split("interrupt,switch,start one,group interrupt,group switch,group start,group read,group stop,rotation," \
          "precise interrupt,branch sample,sampled op,single interrupt," \
          "start one beside pinned,sampled op's address", names, ",")
    for (number in names) {
        numbers[sprintf("0x%x", number)] = number
        by_interrupt[number] = names[number] ~ /interrupt|sample/
    }
    order = "RWPA"
}

# Counts what an operation, or an interrupt, accessed.
function close_span(    place, kind, text, sum) {
    if (!is_open) return
    is_open = 0
    for (place = 1; place <= 4; place++) {
        kind = substr(order, place, 1)
        if (count[kind]) text = text (text == "" ? "" : " ") count[kind] kind
        sum += count[kind]
    }
    if (!sum) return
    if (++times[operation, text] > by_interrupt[operation] && (!(operation in fewest) || sum < fewest[operation])) {
        fewest[operation] = sum
        chosen[operation] = text
    }
}

function open_span() {
    delete count
    is_open = 1
}

$3 == "M" {
    close_span()
    operation = numbers[$5]
    if (operation && !by_interrupt[operation]) open_span()
}
$3 == "I" && by_interrupt[operation] {
    close_span()
    open_span()
}
index(order, $3) && is_open { count[$3]++ }

END {
    for (number = 1; number in names; number++)
        if (number in chosen) print machine "," names[number] "," chosen[number]
    if (verbose)
        for (key in times) {
            split(key, parts, SUBSEP)
            print names[parts[1]] ": " parts[2] ": " times[key] >"/dev/stderr"
        }
}
