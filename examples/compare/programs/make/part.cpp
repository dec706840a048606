// Templates for a compiler to work on.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <vector>

#define NAME_OF(part) work_##part
#define NAME(part) NAME_OF(part)

int NAME(PART)(const std::string &text) {
    std::map<std::string, std::vector<int>> found;
    std::regex word("([a-z]+)([0-9]*)");
    for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at)
        found[at->str(1)].push_back(static_cast<int>(at->position()));
    std::vector<std::function<int(int)>> steps;
    for (auto &[name, places] : found) {
        std::sort(places.begin(), places.end(), std::greater<>());
        steps.push_back([&places = places](int value) { return value + static_cast<int>(places.size()); });
    }
    int value = PART;
    for (auto &step : steps) value = step(value);
    return value;
}

#if PART == 1
int main(int, char **words) { std::printf("%d\n", work_1(words[0])); }
#endif
