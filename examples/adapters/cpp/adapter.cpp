// A KV-cache calculator in C++ that kvconform can ask: full attention and sliding windows.
//
//     g++ -O2 -std=c++17 -o adapter adapter.cpp      (Debian and Ubuntu: nlohmann-json3-dev)
//     kvconform run process:./adapter                (docs/protocol.md)

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

using nlohmann::json;
using Integer = __int128;  // blocks x bytes can pass 2^64

struct Refused : std::runtime_error { using std::runtime_error::runtime_error; };
struct Unsupported : std::runtime_error { using std::runtime_error::runtime_error; };

// Integers of 2^53 and beyond are decimal strings, in both directions.
Integer integer(const json& value) {
    if (value.is_number_integer()) return value.get<long long>();
    const std::string text = value.get<std::string>();
    Integer result = 0;
    for (char digit : text.substr(text[0] == '-')) result = 10 * result + (digit - '0');
    return text[0] == '-' ? -result : result;
}

json wire(Integer value) {
    const Integer limit = Integer(1) << 53;
    if (-limit < value && value < limit) return static_cast<long long>(value);
    std::string digits;
    for (Integer rest = value < 0 ? -value : value; rest > 0; rest /= 10) digits += char('0' + int(rest % 10));
    if (value < 0) digits += '-';
    std::reverse(digits.begin(), digits.end());
    return digits;
}

Integer get(const json& object, const char* field, Integer otherwise = 0) {
    return object.contains(field) && !object[field].is_null() ? integer(object[field]) : otherwise;
}

Integer cdiv(Integer dividend, Integer divisor) { return (dividend + divisor - 1) / divisor; }

Integer unpadded_page(const json& spec) {
    static const std::map<std::string, int> bytes = {
        {"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"int8", 1}, {"uint8", 1}};
    if (!bytes.count(spec["dtype"])) throw Unsupported("dtype " + spec["dtype"].dump());
    if (get(spec, "block_size") <= 0) throw Refused("the block size is not positive");
    const Integer key = get(spec, "head_size"), value = get(spec, "head_size_v", key);
    return get(spec, "num_kv_heads") * get(spec, "block_size") * (key + value) * bytes.at(spec["dtype"]);
}

Integer page(const json& spec) {
    const Integer unpadded = unpadded_page(spec), padded = get(spec, "page_size_padded", unpadded);
    if (padded < unpadded) throw Refused("the padded page is less than the bytes in it");
    return padded;
}

json construct(json spec) {
    page(spec);  // refuses what has none
    spec["head_size_v"] = wire(get(spec, "head_size_v", get(spec, "head_size")));
    return spec;
}

json resize(json spec, Integer block_size) {
    if (block_size <= 0) throw Refused("the block size is not positive");
    // A padding asked for is scaled with the tokens in the page.
    if (!spec["page_size_padded"].is_null())
        spec["page_size_padded"] = wire(get(spec, "page_size_padded") * block_size / get(spec, "block_size"));
    spec["block_size"] = wire(block_size);
    return construct(spec);
}

Integer blocks(const json& spec, const json& deployment) {
    const Integer longest = get(deployment, "max_model_len"), block = get(spec, "block_size");
    const Integer ranks = get(deployment, "decode_context_parallel", 1);
    if (spec["kind"] == "full_attention") return cdiv(cdiv(longest, ranks), block);
    if (ranks > 1) throw Refused("a sliding window cannot be split over ranks");
    const Integer in_flight = get(deployment, "in_flight_tokens") + get(deployment, "num_lookahead_tokens");
    const Integer held = get(spec, "sliding_window") - 1 + get(spec, "extra_retained_tokens") + in_flight;
    // One more, since a window need not start where a block does; never more than the whole request.
    return std::min(cdiv(std::min(held, longest), block) + 1, cdiv(longest, block));
}

json merge(const json& specs) {
    if (specs.empty()) throw Refused("nothing to merge");
    json merged = construct(specs[0]);
    const bool full = merged["kind"] == "full_attention";
    for (const json& other : specs) {
        const json constructed = construct(other);
        for (const auto& [name, value] : constructed.items()) {
            const bool recorded = full && (name == "sliding_window" || name == "attention_chunk_size");
            if (recorded && (value.is_null() || merged[name].is_null())) {
                if (!value.is_null()) merged[name] = value;
            } else if (full && name == "non_causal") {
                merged[name] = merged[name].get<bool>() || value.get<bool>();
            } else if (merged[name] != value) {
                throw Refused("layers of one group differ in " + name);
            }
        }
    }
    if (full && !merged["sliding_window"].is_null() && !merged["attention_chunk_size"].is_null())
        throw Refused("a group records a window and a chunk at once");
    return merged;
}

json answer(const std::string& operation, const json& given) {
    if (operation == "construct") return construct(given["spec"]);
    if (operation == "page_size_bytes") return wire(page(given["spec"]));
    if (operation == "unpadded_page_size_bytes") return wire(unpadded_page(given["spec"]));
    if (operation == "copy_with_new_block_size") return resize(given["spec"], integer(given["block_size"]));
    if (operation == "max_blocks_per_request") return wire(blocks(given["spec"], given["deployment"]));
    if (operation == "max_memory_usage_bytes")
        return wire(blocks(given["spec"], given["deployment"]) * page(given["spec"]));
    if (operation == "max_num_blocks_per_req") {
        const Integer ranks = get(given["deployment"], "decode_context_parallel", 1);
        return wire(cdiv(integer(given["max_len"]), get(given["spec"], "block_size") * ranks));
    }
    if (operation == "merge") return merge(given["specs"]);
    throw Unsupported("operation " + operation);
}

void reply(const json& ask) {
    json said = {{"id", ask["id"]}};
    try { said["result"] = answer(ask["operation"], ask["arguments"]); }
    catch (const Refused& refused) { said["refused"] = refused.what(); }
    catch (const Unsupported& lack) { said["unsupported"] = lack.what(); }
    catch (const std::exception& error) { said["error"] = error.what(); }
    std::cout << said << '\n';
}

int main() {
    const json common = {"block_size", "num_kv_heads", "head_size", "head_size_v", "dtype", "page_size_padded", "sliding_window"};
    json kinds = {{"full_attention", common}, {"sliding_window", common}};
    for (auto field : {"attention_chunk_size", "non_causal"}) kinds["full_attention"].push_back(field);
    kinds["sliding_window"].push_back("extra_retained_tokens");
    const json operations = {"construct", "page_size_bytes", "unpadded_page_size_bytes", "copy_with_new_block_size",
                             "max_blocks_per_request", "max_memory_usage_bytes", "max_num_blocks_per_req", "merge"};
    for (std::string line; std::getline(std::cin, line);) {
        const json command = json::parse(line);
        if (command["command"] == "stop") break;
        if (command["command"] == "start")
            std::cout << json{{"protocol", 1}, {"name", "cpp example"}, {"version", "1"}, {"kinds", kinds}, {"operations", operations}} << '\n';
        else if (command["command"] == "batch")
            for (const json& ask : command["asks"]) reply(ask);
        else
            reply(command);
        std::cout.flush();
    }
}
