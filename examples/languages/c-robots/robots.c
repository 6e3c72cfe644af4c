// Declared robots share one allowance, everybody else has one of their own by address.
//
// The proxy frees what an answer holds, with the functions that wit-bindgen makes: so each text and
// list of an answer is allocated. What a call is given is freed here.

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "policy.h"

// What a robot's User-Agent contains.
static const char *const ROBOTS[] = {"bot", "crawler", "spider", "scraper"};

#define MINUTE_MS 60000
#define QUOTA_MAX 1000000
#define KEY_BYTES 64

// [policies.NAME.config]: requests a minute.
static uint64_t robots, others;

static void *zeroed(size_t count, size_t size) {
  void *memory = calloc(count, size);
  if (!memory) abort();
  return memory;
}

static bool is(const policy_string_t *text, const char *other) {
  return text->len == strlen(other) && memcmp(text->ptr, other, text->len) == 0;
}

// Reading the configuration, which is JSON: an object with two whole numbers.

typedef struct {
  const uint8_t *at, *end;
} reader_t;

static uint8_t next(reader_t *reader) {
  while (reader->at < reader->end && strchr(" \t\r\n", *reader->at)) reader->at++;
  return reader->at < reader->end ? *reader->at : 0;
}

static bool skip(reader_t *reader, uint8_t byte) {
  if (next(reader) != byte) return false;
  reader->at++;
  return true;
}

// A key, without escapes: an unknown key may have some, and is not looked at further.
static policy_string_t key(reader_t *reader) {
  policy_string_t found = {NULL, 0};
  if (!skip(reader, '"')) return found;
  found.ptr = (uint8_t *)reader->at;
  while (reader->at < reader->end && *reader->at != '"') reader->at++;
  found.len = reader->at - found.ptr;
  reader->at++;
  return found;
}

// Whether a whole number from 1 to QUOTA_MAX was read.
static bool quota(reader_t *reader, uint64_t *value) {
  *value = 0;
  next(reader);
  while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9' && *value <= QUOTA_MAX)
    *value = *value * 10 + (*reader->at++ - '0');
  uint8_t after = next(reader);
  return (after == ',' || after == '}') && *value >= 1 && *value <= QUOTA_MAX;
}

static bool mistake(exports_weir_policy_handler_list_mistake_t *mistakes, policy_string_t path,
                    const char *message) {
  mistakes->ptr = zeroed(1, sizeof *mistakes->ptr);
  mistakes->len = 1;
  policy_string_dup_n(&mistakes->ptr->path, (const char *)path.ptr, path.len);
  policy_string_dup(&mistakes->ptr->message, message);
  return false;
}

static bool read(policy_string_t *config, exports_weir_policy_handler_list_mistake_t *mistakes) {
  reader_t reader = {config->ptr, config->ptr + config->len};
  const policy_string_t whole = {(uint8_t *)"", 0};
  robots = others = 0;
  skip(&reader, '{');
  while (next(&reader) == '"') {
    policy_string_t name = key(&reader);
    bool of_robots = is(&name, "robots");
    if (!of_robots && !is(&name, "others"))
      return mistake(mistakes, name, "found an unknown key, expected `robots` or `others`");
    skip(&reader, ':');
    if (!quota(&reader, of_robots ? &robots : &others))
      return mistake(mistakes, name, "expected requests a minute, from 1 to 1000000");
    skip(&reader, ',');
  }
  if (!robots) return mistake(mistakes, whole, "found no `robots`, expected requests a minute");
  if (!others) return mistake(mistakes, whole, "found no `others`, expected requests a minute");
  return true;
}

bool exports_weir_policy_handler_configure(policy_string_t *config,
                                           exports_weir_policy_handler_manifest_t *manifest,
                                           exports_weir_policy_handler_list_mistake_t *mistakes) {
  bool fits = read(config, mistakes);
  policy_string_free(config);
  if (!fits) return false;
  memset(manifest, 0, sizeof *manifest);
  manifest->request_facts.ptr = zeroed(2, sizeof(policy_string_t));
  manifest->request_facts.len = 2;
  policy_string_dup(&manifest->request_facts.ptr[0], "client-ip");
  policy_string_dup(&manifest->request_facts.ptr[1], "header.user-agent");
  manifest->pure = true;
  return true;
}

// Deciding.

static bool is_robot(const policy_string_t *agent) {
  for (size_t word = 0; word < sizeof ROBOTS / sizeof *ROBOTS; word++) {
    size_t length = strlen(ROBOTS[word]);
    for (size_t at = 0; at + length <= agent->len; at++)
      if (strncasecmp((const char *)agent->ptr + at, ROBOTS[word], length) == 0) return true;
  }
  return false;
}

// The address that is counted: of an IPv6 client its network, as it has all addresses of it.
// Written without printf, which would import files that a policy has none of.
static void network(const policy_string_t *client, char key[KEY_BYTES]) {
  struct in6_addr address;
  size_t length = client->len < KEY_BYTES ? client->len : KEY_BYTES - 1;
  memcpy(key, client->ptr, length);
  key[length] = 0;
  if (inet_pton(AF_INET6, key, &address) != 1) return;
  for (int byte = 0; byte < 8; byte++) {
    for (int shift = 4; shift >= 0; shift -= 4)
      *key++ = "0123456789abcdef"[address.s6_addr[byte] >> shift & 15];
    if (byte % 2) *key++ = ':';
  }
  strcpy(key, ":/64");
}

bool exports_weir_policy_handler_decide(exports_weir_policy_handler_list_fact_t *facts,
                                        exports_weir_policy_handler_decision_t *decision,
                                        policy_string_t *error) {
  char key[KEY_BYTES] = "";
  bool robot = false;
  // A repeated field is a repeated fact: one of them is enough.
  for (size_t index = 0; index < facts->len; index++) {
    const exports_weir_policy_handler_fact_t *fact = &facts->ptr[index];
    if (is(&fact->f0, "client-ip")) network(&fact->f1, key);
    if (is(&fact->f0, "header.user-agent")) robot |= is_robot(&fact->f1);
  }
  exports_weir_policy_handler_list_fact_free(facts);
  if (!*key) {
    policy_string_dup(error, "the proxy showed no client-ip");
    return false;
  }
  weir_policy_types_limit_t *limit = zeroed(1, sizeof *limit);
  policy_string_dup(&limit->name, robot ? "robots" : "others");
  policy_string_dup(&limit->key, robot ? "all" : key);
  limit->algorithm.tag = WEIR_POLICY_TYPES_ALGORITHM_FIXED_WINDOW;
  limit->algorithm.val.fixed_window.rate.amount = robot ? robots : others;
  limit->algorithm.val.fixed_window.rate.per_ms = MINUTE_MS;
  limit->cost = 1;
  // Everything else is its first value: it enforces, gives nothing back, does as the route says.
  memset(decision, 0, sizeof *decision);
  decision->verdict.tag = WEIR_POLICY_TYPES_VERDICT_CHECK;
  decision->verdict.val.check.ptr = limit;
  decision->verdict.val.check.len = 1;
  return true;
}

// Never called: no decision asks for it.
bool exports_weir_policy_handler_settle(policy_string_t *memo,
                                        exports_weir_policy_handler_response_view_t *response,
                                        exports_weir_policy_handler_settlement_t *settlement,
                                        policy_string_t *error) {
  (void)error;
  policy_string_free(memo);
  exports_weir_policy_handler_response_view_free(response);
  memset(settlement, 0, sizeof *settlement);
  return true;
}
