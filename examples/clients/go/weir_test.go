package weir

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const (
	allowed = `{"allowed":true,"status":200}`
	batch   = `[{"allowed":true,"status":200},{"error":{"status":413}}]`
)

// serve is a client that allows what Weir doesn't decide, and the server that it asks.
func serve(t *testing.T, handler http.HandlerFunc) (*Client, *httptest.Server) {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	client.Timeout, client.Allow = 5*time.Second, true
	return client, server
}

func status(err error) int {
	var mistake *Error
	if !errors.As(err, &mistake) {
		return 0
	}
	return mistake.Status
}

func TestMistakesAreNoOutage(t *testing.T) {
	for _, want := range []int{405, 413, 415, 431} {
		client, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(want) })
		if _, err := client.Decide(context.Background(), Question{}); status(err) != want {
			t.Errorf("%v, not %d", err, want)
		}
	}
	client, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(batch))
	})
	results := client.Batch(context.Background(), "/v1/decide", make([]Question, 2))
	if !results[0].Decision.Allowed || status(results[1].Err) != 413 {
		t.Errorf("%v", results)
	}
	long := Question{Facts: map[string][]string{"path": {strings.Repeat("/", MaxCall)}}}
	if _, err := client.Decide(context.Background(), long); status(err) != 413 {
		t.Errorf("%v", err)
	}
}

func TestBatchIsSentAgain(t *testing.T) {
	var keys []string
	client, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(keys) == 2 {
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Close()
			return
		}
		_, _ = w.Write([]byte(batch))
	})
	for i := 0; i < 2; i++ {
		results := client.Batch(context.Background(), "/v1/decide", make([]Question, 2))
		if results[0].Decision.Degraded != "" {
			t.Fatalf("%v", results)
		}
	}
	if len(keys) != 3 || keys[0] == "" || keys[0] == keys[1] || keys[1] != keys[2] {
		t.Errorf("%v", keys)
	}
}

func TestHoldIsRoundedUp(t *testing.T) {
	for hold, want := range map[time.Duration]string{
		0:                      "null",
		500 * time.Microsecond: "1",
		time.Millisecond:       "1",
		-time.Microsecond:      "0", // an error of Weir's
	} {
		data, err := json.Marshal(callOf("/v1/decide", Question{Hold: hold}))
		var sent struct {
			Hold json.RawMessage `json:"hold_ms"`
		}
		if err != nil || json.Unmarshal(data, &sent) != nil {
			t.Fatalf("%s %v", data, err)
		}
		if sent.Hold == nil {
			sent.Hold = []byte("null")
		}
		if string(sent.Hold) != want {
			t.Errorf("%v: %s, not %s", hold, sent.Hold, want)
		}
	}
}

func TestTheCallersOwnEndIsNoDecision(t *testing.T) {
	done := make(chan struct{})
	client, _ := serve(t, func(http.ResponseWriter, *http.Request) { <-done })
	defer close(done)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if d, err := client.Decide(ctx, Question{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v %v", d, err)
	}
	client.Timeout = 20 * time.Millisecond
	if d, err := client.Decide(context.Background(), Question{}); err != nil || !d.Allowed {
		t.Errorf("%v %v", d, err)
	}
}

func TestAddresses(t *testing.T) {
	for _, wrong := range []string{"ftp://a", "http://", "http://:80", "http://u:p@a", "http://a?b",
		"http://a#", "http://a:0", "http://a:65536"} {
		if _, err := New(wrong, ""); err == nil {
			t.Errorf("%s", wrong)
		}
	}
}

func TestConnectionsAreFew(t *testing.T) {
	var calls atomic.Int64
	done := make(chan struct{})
	client, _ := serve(t, func(http.ResponseWriter, *http.Request) { calls.Add(1); <-done })
	client.Timeout = 30 * time.Second
	ended := make(chan error)
	for i := 0; i < 2*MaxConns; i++ {
		go func() {
			_, err := client.Decide(context.Background(), Question{})
			ended <- err
		}()
	}
	for calls.Load() < MaxConns {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // for one more, if there could be one
	if n := calls.Load(); n > MaxConns {
		t.Errorf("%d calls at once", n)
	}
	close(done)
	for i := 0; i < 2*MaxConns; i++ {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(allowed)) }))
	defer server.Close()
	for _, trusted := range []bool{false, true} {
		client, err := New(server.URL, "")
		if err != nil {
			t.Fatal(err)
		}
		client.Timeout = 5 * time.Second
		if trusted {
			client.TLS.RootCAs = x509.NewCertPool()
			client.TLS.RootCAs.AddCert(server.Certificate())
		}
		if d, err := client.Decide(context.Background(), Question{}); err != nil || d.Allowed != trusted {
			t.Errorf("%v %v", d, err)
		}
	}
}
