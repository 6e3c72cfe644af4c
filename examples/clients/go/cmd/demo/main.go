// Demo is a small server that asks Weir before it answers: demo LISTEN WEIR_URL
//
// WEIR_TOKEN is its token, if any, WEIR_DOMAIN whose policy decides ("api" if not set),
// WEIR_OWN_FIELDS the header fields that only the policy may set, and WEIR_DEADLINE how long it may
// take ("250ms" if not set).
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"weir"
)

// limit asks by the policy of a domain before it passes a request on. own are the fields that only
// the policy may set: one that a client sends does not reach next.
func limit(client *weir.Client, domain string, own []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		facts := map[string][]string{"method": {r.Method}, "path": {r.URL.EscapedPath()}}
		if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			facts["client-ip"] = []string{peer.Addr().Unmap().WithZone("").String()}
		}
		for _, key := range r.Header.Values("X-Api-Key") {
			facts["header.x-api-key"] = append(facts["header.x-api-key"], fromLatin1(key))
		}
		decision, err := client.Decide(r.Context(), weir.Question{Domain: domain, Facts: facts})
		var mistake *weir.Error
		if r.Context().Err() != nil {
			return // whoever asks has gone
		} else if errors.As(err, &mistake) && mistake.Status == http.StatusBadRequest {
			// Of what whoever asks can choose, only a path can be none.
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		} else if err != nil { // a mistake of ours
			log.Print(err)
			http.Error(w, "could not ask", http.StatusInternalServerError)
			return
		}
		set(w.Header(), decision.Fields)
		if !decision.Allowed {
			w.WriteHeader(decision.Status)
			_, _ = io.WriteString(w, decision.Body) // if it fails, the client has gone
			return
		}
		for _, name := range own {
			r.Header.Del(name)
		}
		set(r.Header, decision.RequestFields)
		next.ServeHTTP(w, r)
	})
}

// set gives the header these fields in place of any of the same name.
func set(header http.Header, fields [][2]string) {
	for _, field := range fields {
		header.Del(field[0])
	}
	for _, field := range fields {
		header.Add(field[0], toLatin1(field[1]))
	}
}

// fromLatin1 makes text of a field's bytes, as Weir does: otherwise all bytes that are no UTF-8
// would be one character, and different keys would share a counter.
func fromLatin1(field string) string {
	var text strings.Builder
	for i := 0; i < len(field); i++ {
		text.WriteRune(rune(field[i]))
	}
	return text.String()
}

// toLatin1 is the way back.
func toLatin1(text string) string {
	var field []byte
	for _, char := range text {
		field = append(field, byte(char))
	}
	return string(field)
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: demo LISTEN WEIR_URL")
	}
	client, err := weir.New(os.Args[2], os.Getenv("WEIR_TOKEN"))
	if err != nil {
		log.Fatal(err)
	}
	if text := os.Getenv("WEIR_DEADLINE"); text != "" {
		if client.Timeout, err = time.ParseDuration(text); err != nil {
			log.Fatal(err)
		}
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello", r.URL.Path, r.Header.Get("X-Plan"))
	})
	domain := os.Getenv("WEIR_DOMAIN")
	if domain == "" {
		domain = "api"
	}
	server := http.Server{
		Addr:              os.Args[1],
		Handler:           limit(client, domain, strings.Fields(os.Getenv("WEIR_OWN_FIELDS")), hello),
		ReadHeaderTimeout: 10 * time.Second,
	}
	log.Fatal(server.ListenAndServe())
}
