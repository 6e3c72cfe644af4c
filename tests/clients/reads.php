<?php
// An upstream that tells which values it read of a request: a router for `php -S`. Each reply is a
// JSON object; what was not sent is null in it. Bytes that are not UTF-8 are written as Latin-1.

function text($value)
{
    if (is_array($value)) {
        return array_map('text', $value);
    }
    return $value === null || preg_match('//u', $value) ? $value : iconv('ISO-8859-1', 'UTF-8', $value);
}

header('Content-Type: application/json');
$authorization = $_SERVER['HTTP_AUTHORIZATION'] ?? '';
echo json_encode([
    'header' => text($_SERVER['HTTP_X_API_KEY'] ?? null),
    'bearer' => preg_match('/^bearer\s+(\S+)/i', $authorization, $found) ? text($found[1]) : null,
    'query' => text($_GET['username'] ?? null),
    'form' => text($_POST['username'] ?? null),
    'cookie' => text($_COOKIE['session'] ?? null),
    'internal' => text($_SERVER['HTTP_X_INTERNAL'] ?? null),
    'user' => text($_SERVER['HTTP_X_USER'] ?? null),
    'plan' => text($_SERVER['HTTP_X_PLAN'] ?? null),
]);
