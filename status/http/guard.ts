/**
 * Refuses requests that a web site makes through a browser on this node: DNS rebinding (the site's name
 * resolves to a loopback address) and cross-site requests. Pure.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { canonicalAddress, isLoopback } from '../../api/addresses.ts';

/** Why a request is refused. */
export interface Refusal {
  readonly code: 403 | 421;
  readonly message: string;
}

/**
 * Checks `Host`, `Origin` and `Sec-Fetch-Site`. Browsers always send the name of the site as `Host`, so a rebound name
 * fails; `localhost` and addresses are not names that a site can own.
 * @param bindHost the address on which the server listens.
 */
export function refuse(headers: IncomingHttpHeaders, bindHost: string): Refusal | undefined {
  const { host = '', origin } = headers;
  if (!isAllowedHost(host, bindHost)) {
    return {
      code: 421,
      message:
        'Host must be localhost, a loopback address, or the address of --status-bind-address',
    };
  }
  if (origin !== undefined && origin !== `http://${host}`) {
    return { code: 403, message: 'Origin must be the address of this page' };
  }
  const site = headers['sec-fetch-site'];
  if (site !== undefined && site !== 'same-origin' && site !== 'none') {
    return { code: 403, message: 'requests from other sites are not allowed' };
  }
  return undefined;
}

function isAllowedHost(host: string, bindHost: string): boolean {
  const match = /^(?:\[([0-9a-f:.]+)\]|([a-z0-9.]+))(?::\d{1,5})?$/i.exec(host);
  const name = (match?.[1] ?? match?.[2] ?? '').toLowerCase();
  if (name === 'localhost') return true;
  const address = canonicalAddress(name);
  return address !== undefined && (isLoopback(address) || address === canonicalAddress(bindHost));
}

/** Headers of every answer. The page has no inline scripts and loads nothing from elsewhere. */
export const SECURITY_HEADERS = {
  'cache-control': 'no-store',
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
} as const;
