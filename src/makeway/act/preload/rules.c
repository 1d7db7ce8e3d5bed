#include "rules.h"

#include <string.h>

enum { HEADER_BYTES = 24, VERSION = 2, RAISE_COMM_PRIORITY = 1, MATCH_STEPS = 1 << 18 };

/* FNV-1a, 64 bits. */
uint64_t rules_hash(const uint8_t *data, size_t size) {
    uint64_t value = 0xcbf29ce484222325u;
    for (size_t at = 0; at < size; at++)
        value = (value ^ data[at]) * 0x100000001b3u;
    return value;
}

/* --- the file ------------------------------------------------------------------------------ */

struct reader {
    const uint8_t *at, *end;
    bool short_of;
};

static uint64_t number(struct reader *reader, int bytes) {
    uint64_t value = 0;
    if (reader->end - reader->at < bytes) {
        reader->short_of = true;
        return 0;
    }
    for (int byte = 0; byte < bytes; byte++)
        value |= (uint64_t)reader->at[byte] << 8 * byte;
    reader->at += bytes;
    return value;
}

static bool read_pattern(struct reader *reader, struct pattern *pattern) {
    uint32_t length = (uint32_t)number(reader, 2);
    if (reader->short_of || length == 0 || length > LONGEST_PATTERN || reader->end - reader->at < (ptrdiff_t)length)
        return false;
    for (uint32_t at = 0; at < length; at++)
        if (reader->at[at] < ' ' || reader->at[at] > '~')
            return false;
    *pattern = (struct pattern){(const char *)reader->at, length};
    reader->at += length;
    return true;
}

static bool names_code(struct pattern pattern) {
    return pattern.length >= 5 && memcmp(pattern.text, "code:", 5) == 0;
}

static bool read_rule(struct reader *reader, struct rule *rule) {
    uint64_t kind = number(reader, 1), value = number(reader, 4);
    if (!read_pattern(reader, &rule->pattern) || kind > RULE_BLOCKS || value < 1 || value > INT32_MAX)
        return false;
    rule->kind = (enum rule_kind)kind;
    rule->value = (uint32_t)value;
    if (!names_code(rule->pattern))
        return true;
    if (rule->pattern.length != 5 + 16)
        return false;
    for (int at = 5; at < 5 + 16; at++)
        if (!memchr("0123456789abcdef", rule->pattern.text[at], 16))
            return false;
    return true;
}

static bool read_set(struct reader *reader, struct rules *rules) {
    uint64_t flags = number(reader, 4), launches = number(reader, 4);
    if (reader->short_of || flags & ~(uint64_t)RAISE_COMM_PRIORITY || launches > MOST_LAUNCH_RULES - rules->launches)
        return false;
    struct rule_set *set = &rules->set[rules->sets];
    set->raise_comm_priority = flags & RAISE_COMM_PRIORITY;
    set->first = rules->launches;
    set->end = set->first + (uint32_t)launches;
    for (; rules->launches < set->end; rules->launches++) {
        struct rule *rule = &rules->launch[rules->launches];
        if (!read_rule(reader, rule))
            return false;
        rules->any_code |= names_code(rule->pattern);
    }
    return true;
}

static const char *parse_body(struct rules *rules, struct reader *reader) {
    static const char damaged[] = "the rules file is damaged: a rule cannot be read";
    uint64_t sets = number(reader, 4), comms = number(reader, 4);
    if (reader->short_of || sets < 1 || sets > MOST_RULE_SETS || comms > MOST_COMM_PATTERNS)
        return damaged;
    for (; rules->sets < sets; rules->sets++)
        if (!read_set(reader, rules))
            return damaged;
    for (; rules->comms < comms; rules->comms++)
        if (!read_pattern(reader, &rules->comm[rules->comms]))
            return damaged;
    return reader->at == reader->end ? NULL : damaged;
}

const char *rules_parse(struct rules *rules, const uint8_t *data, size_t size) {
    struct reader reader = {data, data + size, false};
    rules->any_code = false;
    rules->sets = rules->launches = rules->comms = 0;
    if (size < HEADER_BYTES || memcmp(data, "MKWRULES", 8) != 0)
        return "not a rules file: its first bytes are others";
    reader.at += 8;
    uint64_t version = number(&reader, 4), length = number(&reader, 4), checksum = number(&reader, 8);
    if (version > VERSION)
        return "the rules file is of a newer version than this shim";
    if (version != VERSION)
        return "the rules file is of an unknown version";
    if (length != size)
        return "the rules file is cut short or too long";
    if (checksum != rules_hash(reader.at, size - HEADER_BYTES))
        return "the rules file is damaged: its checksum does not match";
    const char *wrong = parse_body(rules, &reader);
    if (wrong)
        rules->sets = rules->launches = rules->comms = 0;
    return wrong;
}

/* --- globs --------------------------------------------------------------------------------- */

/* What remains to match: the rest of an alternative, then whatever follows its closing brace. */
struct rest {
    const char *at, *end;
    const struct rest *then;
};

struct match {
    bool braces;
    int steps; /* steps left: a hostile pattern would take exponential time; it then matches nothing */
};

/* One past the bracket that closes the class at `at`; NULL: '[' is an ordinary character, as in fnmatch. */
static const char *class_end(const char *at, const char *end) {
    const char *close = at + 1;
    if (close < end && *close == '!')
        close++;
    if (close < end && *close == ']')
        close++;
    close = close < end ? memchr(close, ']', (size_t)(end - close)) : NULL;
    return close ? close + 1 : NULL;
}

static bool in_class(const char *at, const char *close, char letter) {
    bool negated = *++at == '!', found = false;
    unsigned char wanted = (unsigned char)letter;
    if (negated)
        at++;
    for (; at < close; at++) {
        unsigned char low = (unsigned char)*at, high = low;
        if (close - at > 2 && at[1] == '-') {
            high = (unsigned char)at[2];
            at += 2;
        }
        found |= low <= wanted && wanted <= high;
    }
    return found != negated;
}

static const char *brace_end(const char *at, const char *end) {
    int depth = 0;
    for (; at < end; at++) {
        const char *skip = *at == '[' ? class_end(at, end) : NULL;
        if (skip)
            at = skip - 1;
        else if (*at == '{')
            depth++;
        else if (*at == '}' && --depth == 0)
            return at;
    }
    return NULL;
}

static bool matches(struct rest rest, const char *name, struct match *match);

static bool any_alternative(struct rest rest, const char *close, const char *name, struct match *match) {
    struct rest after = {close + 1, rest.end, rest.then};
    const char *start = rest.at + 1;
    int depth = 0;
    for (const char *at = start; at <= close; at++) {
        const char *skip = *at == '[' ? class_end(at, close) : NULL;
        if (skip) {
            at = skip - 1;
            continue;
        }
        if ((*at == ',' && depth == 0) || at == close) {
            if (matches((struct rest){start, at, &after}, name, match))
                return true;
            start = at + 1;
        }
        depth += (*at == '{') - (*at == '}');
    }
    return false;
}

static bool any_suffix(struct rest rest, const char *name, struct match *match) {
    rest.at++;
    for (;; name++) {
        if (matches(rest, name, match))
            return true;
        if (!*name || match->steps <= 0)
            return false;
    }
}

static bool matches(struct rest rest, const char *name, struct match *match) {
    for (; match->steps-- > 0; rest.at++, name++) {
        while (rest.at == rest.end) {
            if (!rest.then)
                return !*name;
            rest = *rest.then;
        }
        const char *close;
        if (*rest.at == '*')
            return any_suffix(rest, name, match);
        if (match->braces && *rest.at == '{' && (close = brace_end(rest.at, rest.end)))
            return any_alternative(rest, close, name, match);
        if (!*name)
            return false;
        if (*rest.at == '[' && (close = class_end(rest.at, rest.end))) {
            if (!in_class(rest.at, close - 1, *name))
                return false;
            rest.at = close - 1;
        } else if (*rest.at != '?' && *rest.at != *name) {
            return false;
        }
    }
    return false;
}

static bool glob(struct pattern pattern, const char *name, bool braces) {
    struct match match = {braces, MATCH_STEPS};
    return matches((struct rest){pattern.text, pattern.text + pattern.length, NULL}, name, &match);
}

bool rules_comm(const struct rules *rules, const char *name) {
    for (uint32_t at = 0; at < rules->comms; at++) {
        struct pattern pattern = rules->comm[at];
        bool compute = pattern.text[0] == '!';
        if (glob((struct pattern){pattern.text + compute, pattern.length - compute}, name, true))
            return !compute;
    }
    return false;
}

const struct rule *rules_find(const struct rules *rules, uint32_t set, const char *name, const char *code) {
    if (set >= rules->sets)
        return NULL;
    for (uint32_t at = rules->set[set].first; at < rules->set[set].end; at++) {
        const struct rule *rule = &rules->launch[at];
        if (names_code(rule->pattern) ? code && memcmp(rule->pattern.text + 5, code, 16) == 0
                                      : name && glob(rule->pattern, name, false))
            return rule;
    }
    return NULL;
}
