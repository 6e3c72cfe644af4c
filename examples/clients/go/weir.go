// Package weir asks Weir, a rate limiter, over its HTTP decision API.
package weir

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// MaxCall is how many bytes a call, or a batch, may have: Weir takes no more.
const MaxCall = 1 << 20

// MaxConns is how many connections there are at once, idle and new ones included. A call that
// finds none waits for one, until its timeout.
const MaxConns = 256

// MaxAnswer is how many bytes the answer to one call may have; that to a batch, 16 times as many.
const MaxAnswer = 1 << 20

// Error says that the call itself is wrong: bad request, bad token, no such domain, too long.
type Error struct {
	Status int // of Weir's HTTP answer
	Detail string
}

func (e *Error) Error() string { return fmt.Sprintf("weir: %d: %s", e.Status, e.Detail) }

// Decision says what to do with a request. If it is refused, answer with Status, Fields and Body;
// if it is allowed, add Fields to the answer and set RequestFields on the request passed on.
type Decision struct {
	Allowed       bool        `json:"allowed"`
	Status        int         `json:"status"`
	Fields        [][2]string `json:"fields"`
	RequestFields [][2]string `json:"request_fields"`
	Body          string      `json:"body"`
	Limits        []Limit     `json:"limits"`
	RefusedBy     []string    `json:"refused_by"`
	ID            string      `json:"id"` // of a held decision
	RetryAfterMs  int64       `json:"retry_after_ms"`
	Degraded      string      `json:"degraded"` // why not all was checked, e.g. "unreachable"
}

// Limit is how one limit stands.
type Limit struct {
	Name         string `json:"name"`
	Fits         bool   `json:"fits"`
	Quota        uint64 `json:"quota"`
	WindowS      uint64 `json:"window_s"`
	Remaining    uint64 `json:"remaining"`
	ResetsMs     int64  `json:"resets_ms"`
	RetryAfterMs int64  `json:"retry_after_ms"`
}

// Question is what Weir decides about. All strings are UTF-8: JSON has no other bytes.
type Question struct {
	Domain  string
	Facts   map[string][]string
	Entries [][2]string   // name and value, in order
	Limits  []any         // the caller's own, as JSON: for Take and Look
	Hits    int           // units to take; 0 means 1 (Look takes none)
	Hold    time.Duration // if not 0, held until it is settled, or for so many milliseconds
	Key     string        // of idempotency; a random one if empty
}

// Client asks Weir. Make one and share it.
type Client struct {
	// Timeout is for a whole call: connecting, sending and reading the answer.
	Timeout time.Duration
	// Allow says what holds while Weir gives no decision.
	Allow bool
	// TLS is for https: authorities other than the system's, a certificate of the client's own.
	// Change what it points to before the first call.
	TLS *tls.Config

	url, token string
	http       *http.Client
	last       atomic.Value // the address that was last connected to, a string
}

// New returns a client with a timeout of 250 ms, which refuses while Weir gives no decision.
// The token may be empty.
func New(address, token string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		strings.ContainsAny(address, "?#") || (u.Port() != "" && (err != nil || port == 0)) {
		return nil, errors.New("weir: want http[s]://HOST[:PORT][/PATH]")
	}
	if !printable(token) {
		return nil, errors.New("weir: want a printable token")
	}
	c := &Client{
		Timeout: 250 * time.Millisecond,
		TLS:     &tls.Config{MinVersion: tls.VersionTLS12},
		url:     strings.TrimRight(address, "/"),
		token:   token,
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         c.dial,
			TLSClientConfig:     c.TLS,
			TLSHandshakeTimeout: 5 * time.Second,
			MaxConnsPerHost:     MaxConns,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	return c, nil
}

// dial ends by the timeout, as the transport doesn't cancel it with the call that it is for. Each
// address of a name has its share of the time that is left, the one that worked last first: a
// net.Dialer would give all of so short a time to the first of a family.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	end := time.Now().Add(c.Timeout)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	last := c.last.Load()
	sort.SliceStable(found, func(i, j int) bool { return found[i] == last && found[j] != last })
	var conn net.Conn
	for i, one := range found {
		share := net.Dialer{Timeout: time.Until(end) / time.Duration(len(found)-i)}
		conn, err = share.DialContext(ctx, network, net.JoinHostPort(one, port))
		if err == nil {
			c.last.Store(one)
			return conn, nil
		}
	}
	return nil, err
}

// Decide takes q.Hits units by the policy of q.Domain. The error is an *Error, or that of ctx if
// it is done, or says that q.Limits are not JSON; that Weir can't be reached, or not by Timeout, is
// none, but makes a decision of its own.
func (c *Client) Decide(ctx context.Context, q Question) (Decision, error) {
	return c.decide(ctx, "/v1/decide", q)
}

// Take is as Decide, but by the caller's own q.Limits, counted by q.Entries.
func (c *Client) Take(ctx context.Context, q Question) (Decision, error) {
	return c.decide(ctx, "/v1/take", q)
}

// Look says what would be decided, and takes nothing.
func (c *Client) Look(ctx context.Context, q Question) (Decision, error) {
	return c.decide(ctx, "/v1/look", q)
}

// Settlement closes a held decision. The empty Outcome means "completed". Status is that of the
// answer, and 0 if there was none; without it "completed" means 200.
type Settlement struct {
	ID      string              `json:"id"`
	Outcome string              `json:"outcome,omitempty"`
	Status  int                 `json:"status,omitempty"`
	Facts   map[string][]string `json:"facts,omitempty"`
}

// Settle reports false if s could not be delivered or its ID is not known (any more).
func (c *Client) Settle(ctx context.Context, s Settlement) (bool, error) {
	return c.close(ctx, "/v1/settle", s)
}

// GiveBack gives back all that a held decision took. It reports false as Settle does.
func (c *Client) GiveBack(ctx context.Context, id string) (bool, error) {
	return c.close(ctx, "/v1/give-back", Settlement{ID: id})
}

// Renew holds a held decision for as long from now on. It reports false as Settle does.
func (c *Client) Renew(ctx context.Context, id string, hold time.Duration) (bool, error) {
	renewal := struct {
		ID     string `json:"id"`
		HoldMs int64  `json:"hold_ms"`
	}{id, hold.Milliseconds()}
	return c.close(ctx, "/v1/renew", renewal)
}

// Result is a decision of a batch, or why there is none.
type Result struct {
	Decision Decision
	Err      error
}

// Batch asks up to 1,024 questions at once, at /v1/decide, /v1/take or /v1/look. The results are
// in their order. Their keys are not used: the batch as a whole has a random one.
func (c *Client) Batch(ctx context.Context, path string, questions []Question) []Result {
	calls := make([]call, len(questions))
	for i, q := range questions {
		calls[i] = callOf(path, q)
	}
	key := []string{}
	if path != "/v1/look" {
		key = newKey()
	}
	results := make([]Result, len(questions))
	status, data, err := c.ask(ctx, path, calls, key, 16*MaxAnswer)
	var answers []json.RawMessage
	whole := err == nil && status == 200 && json.Unmarshal(data, &answers) == nil &&
		len(answers) == len(calls)
	for i := range results {
		r := &results[i]
		if err != nil {
			r.Err = err
		} else if !whole {
			r.Decision, r.Err = c.read(status, nil, detail(data))
		} else {
			var failed struct{ Error *problem }
			_ = json.Unmarshal(answers[i], &failed) // if it fails, there is no error member
			if failed.Error != nil {
				r.Decision, r.Err = c.read(failed.Error.Status, nil, failed.Error.Detail)
			} else {
				r.Decision, r.Err = c.read(200, answers[i], "")
			}
		}
	}
	return results
}

func (c *Client) decide(ctx context.Context, path string, q Question) (Decision, error) {
	if len(q.Key) > 255 || !printable(q.Key) {
		return Decision{}, &Error{400, "Key: 1 to 255 printable ASCII characters"}
	}
	key := []string{q.Key}
	if path == "/v1/look" {
		key = []string{}
	} else if q.Key == "" {
		key = newKey()
	}
	status, data, err := c.ask(ctx, path, callOf(path, q), key, MaxAnswer)
	if err != nil {
		return Decision{}, err
	}
	return c.read(status, data, detail(data))
}

func (c *Client) close(ctx context.Context, path string, s any) (bool, error) {
	// An id is settled once: sent again, it is at worst not known any more.
	status, data, err := c.ask(ctx, path, s, []string{}, MaxAnswer)
	if err != nil {
		return false, err
	}
	if status != 404 && isMistake(status) {
		return false, mistake(status, detail(data))
	}
	var answer struct{ Settled, Renewed bool }
	isRead := json.Unmarshal(data, &answer) == nil
	return status == 200 && isRead && (answer.Settled || answer.Renewed), nil
}

// call is a question as the API has it.
type call struct {
	Domain  string              `json:"domain"`
	Facts   map[string][]string `json:"facts,omitempty"`
	Entries [][2]string         `json:"entries,omitempty"`
	Limits  []any               `json:"limits,omitempty"`
	Hits    int                 `json:"hits,omitempty"`
	HoldMs  *int64              `json:"hold_ms,omitempty"`
}

func callOf(path string, q Question) call {
	c := call{q.Domain, q.Facts, q.Entries, q.Limits, q.Hits, nil}
	if q.Hold != 0 { // a part of a millisecond is one
		ms := (q.Hold + time.Millisecond - 1).Milliseconds()
		c.HoldMs = &ms
	}
	if path == "/v1/look" {
		c.Hits, c.HoldMs = 0, nil
	} else if path == "/v1/decide" {
		c.Limits = nil
	}
	return c
}

type problem struct {
	Status int
	Detail string
}

// read makes a decision of an answer, or of there being none (status 0).
func (c *Client) read(status int, data []byte, detail string) (Decision, error) {
	if isMistake(status) {
		return Decision{}, mistake(status, detail)
	}
	why := http.StatusText(status)
	switch {
	case status == 0:
		why = "unreachable"
	case status == 200:
		var answer struct {
			Decision
			Allowed *bool `json:"allowed"`
		}
		if json.Unmarshal(data, &answer) == nil && answer.Allowed != nil && answer.Status != 0 {
			answer.Decision.Allowed = *answer.Allowed
			return answer.Decision, nil
		}
		why = "bad answer"
	case why == "":
		why = fmt.Sprint(status)
	}
	if c.Allow {
		return Decision{Allowed: true, Status: 200, Degraded: why}, nil
	}
	return Decision{Status: 503, Degraded: why}, nil
}

// ask gives the answer's HTTP status, 0 if none came. The transport itself repeats a call on
// another connection if a reused one is closed before a byte of the answer: if the call has a key,
// or an empty list of them, which says that it may be repeated and isn't sent. The error is that of
// the caller's ctx, or of the payload.
func (c *Client) ask(
	caller context.Context, path string, payload any, key []string, bound int64,
) (int, []byte, error) {
	body, err := json.Marshal(payload)
	if err != nil {
		return 0, nil, err
	}
	if len(body) > MaxCall { // Weir's own answer can be lost while the rest is being sent
		return 0, nil, &Error{413, fmt.Sprintf("%d bytes, not %d at most", len(body), MaxCall)}
	}
	ctx, cancel := context.WithTimeout(caller, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if key != nil {
		req.Header["Idempotency-Key"] = key
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, caller.Err()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, bound+1))
	if err != nil {
		return 0, nil, caller.Err()
	}
	if int64(len(data)) > bound {
		data = nil
	}
	return res.StatusCode, data, nil
}

func isMistake(status int) bool {
	switch status {
	case 400, 401, 403, 404, 405, 409, 413, 415, 422, 431:
		return true
	}
	return false
}

func mistake(status int, detail string) error {
	if detail == "" {
		detail = http.StatusText(status)
	}
	return &Error{status, detail}
}

func detail(data []byte) string {
	var p problem
	if json.Unmarshal(data, &p) != nil {
		return ""
	}
	return p.Detail
}

// newKey is nil (so that the call is not repeated) if there is no randomness to be had.
func newKey() []string {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil
	}
	return []string{hex.EncodeToString(random[:])}
}

func printable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}
