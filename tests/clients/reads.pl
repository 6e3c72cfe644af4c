# An upstream that tells which values it read of a request: a CGI program. A reply is a JSON object;
# what was not sent is null in it. It knows no forms and no cookies.

use strict;

sub text {
    my ($value) = @_;
    return "null" unless defined $value;
    $value =~ s/([^A-Za-z0-9 ._-])/sprintf("\\u%04x", ord($1))/ge;
    return "\"$value\"";
}

my ($bearer) = ($ENV{HTTP_AUTHORIZATION} // "") =~ /^bearer +(\S+)/i;
my %read = (
    header   => $ENV{HTTP_X_API_KEY},
    bearer   => $bearer,
    internal => $ENV{HTTP_X_INTERNAL},
    user     => $ENV{HTTP_X_USER},
    plan     => $ENV{HTTP_X_PLAN},
);
print "Content-Type: application/json\r\n\r\n{";
print join(",", map { "\"$_\":" . text($read{$_}) } sort keys %read);
print "}";
