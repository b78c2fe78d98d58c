/**
 * Explains failed requests to the API server for operators: the cause, and advice on what to check.
 */

/** The server that the request was sent to. */
export interface RequestTarget {
  /** URL of the server. */
  readonly server: string;
  readonly proxyUrl?: string | undefined;
}

/** The request that failed. */
export interface RequestSummary {
  readonly method: string;
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
}

/** An error of Node. */
interface SystemError extends Error {
  readonly code?: string;
  /** The server's certificate, if the error is about it. */
  readonly cert?: { readonly subjectaltname?: string };
}

interface ConnectionReason {
  /** Error codes of Node, OpenSSL or getaddrinfo. */
  readonly codes: RegExp;
  /** Distinguishes errors that share a code. */
  readonly message?: RegExp;
  /**
   * Whether the failure concerns the first hop: the proxy if there is one, otherwise the API
   * server.
   */
  readonly isFirstHop?: boolean;
  readonly explain: (error: SystemError, url: URL, check: string) => string;
}

const CHECK_SERVER = 'check "server" in the kubeconfig';
const CHECK_PROXY = 'check "proxy-url" in the kubeconfig';

const CONNECTION_REASONS: readonly ConnectionReason[] = [
  {
    codes: /^ECONNREFUSED$/,
    isFirstHop: true,
    explain: (_error, _url, check) =>
      `refused the connection: no process listens on this port, or a firewall rejects it; ${check}, and whether the server runs`,
  },
  {
    codes: /^(ECONNRESET|EPIPE|ECONNABORTED)$/,
    explain: () =>
      'closed the connection: it is restarting, or a load balancer or proxy on the path closed it',
  },
  {
    codes: /^ETIMEDOUT$/,
    isFirstHop: true,
    explain: ({ message }) =>
      `does not respond (${message}): check routes, firewalls and network policies between the node and this address`,
  },
  {
    codes: /^(EHOSTUNREACH|ENETUNREACH|EHOSTDOWN|ENETDOWN|EADDRNOTAVAIL)$/,
    isFirstHop: true,
    explain: (_error, _url, check) =>
      `cannot be reached: the node has no route to this address; ${check}`,
  },
  {
    codes: /^ENOTFOUND$/,
    isFirstHop: true,
    explain: (_error, { hostname }, check) =>
      `has an unknown host name: DNS has no address for ${hostname}; ${check}`,
  },
  {
    codes: /^EAI_/,
    isFirstHop: true,
    explain: (_error, { hostname }) =>
      `has a host name that cannot be resolved: no DNS server answers for ${hostname}; check resolv.conf of the node`,
  },
  {
    codes:
      /^(UNABLE_TO_VERIFY_LEAF_SIGNATURE|UNABLE_TO_GET_ISSUER_CERT(_LOCALLY)?|SELF_SIGNED_CERT_IN_CHAIN|DEPTH_ZERO_SELF_SIGNED_CERT|CERT_UNTRUSTED|CERT_SIGNATURE_FAILURE|INVALID_CA)$/,
    explain: () =>
      'has a certificate from an untrusted authority: certificate-authority in the kubeconfig must be the CA of this cluster',
  },
  {
    codes: /^ERR_TLS_CERT_ALTNAME_INVALID$/,
    explain: ({ cert }, { hostname }) =>
      `has a certificate for other names (${cert?.subjectaltname ?? 'none'}): in the kubeconfig, use one of them in "server" instead of ${hostname}, or as tls-server-name`,
  },
  {
    codes: /^CERT_HAS_EXPIRED$/,
    explain: () => 'has an expired certificate: renew it, or correct the clock of the node',
  },
  {
    codes: /^CERT_NOT_YET_VALID$/,
    explain: () => 'has a certificate that is not valid yet: check the clock of the node',
  },
  {
    codes: /^ERR_OSSL_X509_KEY_VALUES_MISMATCH$/,
    explain: () => 'was not contacted: client-key does not belong to client-certificate',
  },
  {
    codes: /^ERR_OSSL_(UNSUPPORTED|PEM_.*|ASN1_.*)$/,
    explain: () =>
      'was not contacted: client-certificate or client-key in the kubeconfig cannot be decoded',
  },
  {
    codes: /ALERT_(CERTIFICATE|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|UNKNOWN_CA)/,
    explain: () =>
      'rejected the client certificate: check client-certificate and client-key in the kubeconfig',
  },
  {
    codes: /^(EPROTO|ERR_SSL_.*)$/,
    message: /wrong version number|packet length too long/,
    explain: () =>
      'does not use TLS on this port: "server" in the kubeconfig must be an http:// URL or have another port',
  },
  {
    codes: /^(EPROTO|ERR_SSL_.*)$/,
    explain: ({ message }) => `failed the TLS handshake (${opensslReason(message)})`,
  },
  {
    codes: /^HPE_/,
    explain: () => `does not use HTTP on this port; ${CHECK_SERVER}`,
  },
  {
    codes: /^ERR_PROXY_TUNNEL$/,
    isFirstHop: true,
    explain: (_error, _url, check) => `did not open a tunnel to the API server; ${check}`,
  },
  {
    codes: /^(EMFILE|ENFILE)$/,
    explain: () => 'was not contacted: the node has too many open files',
  },
];

/**
 * Explains a request without a complete response.
 * @param target undefined if no request was sent.
 */
export function explainConnection(cause: unknown, target: RequestTarget | undefined): string {
  if (!(cause instanceof Error)) return String(cause);
  const error: SystemError = cause;
  const { code = '', message } = error;
  const reason = CONNECTION_REASONS.find(
    (each) => each.codes.test(code) && (each.message === undefined || each.message.test(message)),
  );
  if (target === undefined || reason === undefined) return stripNodeAdvice(message);
  const { server, proxyUrl } = target;
  const hop = reason.isFirstHop === true && proxyUrl ? proxyUrl : server;
  const subject = hop === server ? server : `the proxy ${hop}`;
  const check = hop === server ? CHECK_SERVER : CHECK_PROXY;
  return `${subject} ${reason.explain(error, new URL(hop), check)} (${code})`;
}

/**
 * Advice for the operator on an error response; empty when the message of the response is
 * sufficient.
 * @param body body of the response.
 */
export function statusAdvice(
  code: number,
  body: string,
  { method, path, query }: RequestSummary,
): string {
  if (code === 403 && body.includes('system:anonymous')) {
    return 'the API server treats the request as anonymous: check the token or client certificate in the kubeconfig or of the service account';
  }
  if (code === 401) {
    return 'the credentials are invalid or expired: check the token or client certificate in the kubeconfig or of the service account';
  }
  if (code === 403) {
    const { group, resource } = PATH.exec(path)?.groups ?? {};
    const verb = verbOf(method, query);
    const inGroup = group === undefined ? '' : ` in the API group ${group}`;
    return `the user needs permission to ${verb} ${resource}${inGroup}: apply rbac.yaml of deploy/base, deploy/network-policy or deploy/dns, and check the ClusterRoleBinding`;
  }
  return '';
}

/** Advice for the operator on a response that is not a Kubernetes `Status`. */
export function nonStatusAdvice(code: number, text: string, location: string | undefined): string {
  if (/HTTP request to an HTTPS server/.test(text)) {
    return 'the server uses TLS: "server" in the kubeconfig must be an https:// URL';
  }
  if (code >= 300 && code < 400) {
    return `the server redirects to ${location ?? 'another address'}; ${CHECK_SERVER}`;
  }
  if (code === 404) return `the server does not have this path; ${CHECK_SERVER}`;
  return `the response is not from an API server; a proxy may have sent it; ${CHECK_SERVER}`;
}

/**
 * Removes from a cause the advice that Node gives to its own users, because logs may print the
 * cause in full.
 */
export function withoutNodeAdvice(cause: unknown): unknown {
  if (!(cause instanceof Error) || stripNodeAdvice(cause.message) === cause.message) return cause;
  const plain = new Error(stripNodeAdvice(cause.message));
  return 'code' in cause ? Object.assign(plain, { code: cause.code }) : plain;
}

const PATH = /^\/(?:api|apis\/(?<group>[^/]+))\/[^/]+\/(?:namespaces\/[^/]+\/)?(?<resource>[^/]+)/;

function verbOf(method: string, query: RequestSummary['query']): string {
  if (method === 'POST') return 'create';
  if (method === 'PATCH') return 'patch';
  return query.watch === 'true' ? 'watch' : 'list';
}

/** Extracts the reason, such as `wrong version number`, from a message of OpenSSL. */
function opensslReason(message: string): string {
  return /:SSL routines:[^:]*:([^:]+)/.exec(message)?.[1] ?? message;
}

function stripNodeAdvice(message: string): string {
  return message.replace(/;? ?(if the root CA|try running Node).*$/s, '');
}
