/** Asks the API server which requests it allows (SelfSubjectAccessReview), and which ServiceCIDRs exist. */
import { canonicalCidr } from '../../api/addresses.ts';
import { isRecord } from '../../api/read-field.ts';
import { type ClusterOptions, loadClusterConfig } from './config.ts';
import { MalformedResponse } from './errors.ts';
import type { Resource } from './resources.ts';
import { createOpenSession, type Session } from './session.ts';

/** A kind of request. */
export interface Access {
  readonly verb: string;
  /** Empty for the core group. */
  readonly group: string;
  readonly resource: string;
}

export interface ReviewedAccess extends Access {
  readonly allowed: boolean;
}

const REVIEWS = '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews';
const SERVICE_CIDRS = '/apis/networking.k8s.io/v1/servicecidrs';

/** The requests of an agent that lists and watches these resources and writes Events. */
export function accessOf(resources: readonly Resource[]): Access[] {
  const reads = resources.flatMap(({ paths: [path] }) => {
    const [, group = '', resource = ''] = /^\/(?:api|apis\/([^/]+))\/[^/]+\/(.+)$/.exec(path) ?? [];
    return ['list', 'watch'].map((verb) => ({ verb, group, resource }));
  });
  const events = { group: 'events.k8s.io', resource: 'events' };
  return [...reads, ...['create', 'patch'].map((verb) => ({ verb, ...events }))];
}

/**
 * Asks for each request whether it is allowed in all namespaces, one question after the other. Needs no right of its
 * own: every authenticated account may ask (ClusterRole system:basic-user).
 * @throws ClusterConfigError, ApiError, ConnectionError, MalformedResponse
 */
export function reviewAccess(
  cluster: ClusterOptions,
  wanted: readonly Access[],
): Promise<ReviewedAccess[]> {
  return withSession(cluster, async (session) => {
    const reviewed: ReviewedAccess[] = [];
    for (const access of wanted) {
      const answer = await session.send('POST', REVIEWS, {
        apiVersion: 'authorization.k8s.io/v1',
        kind: 'SelfSubjectAccessReview',
        spec: { resourceAttributes: access },
      });
      const status = isRecord(answer) ? answer.status : undefined;
      if (!isRecord(status) || typeof status.allowed !== 'boolean') {
        throw new MalformedResponse('API server: SelfSubjectAccessReview without status.allowed');
      }
      reviewed.push({ ...access, allowed: status.allowed });
    }
    return reviewed;
  });
}

/**
 * The CIDRs of all ServiceCIDR objects (Kubernetes 1.33).
 * @throws ClusterConfigError, ApiError, ConnectionError, MalformedResponse
 */
export function listServiceCidrs(cluster: ClusterOptions): Promise<string[]> {
  return withSession(cluster, async (session) => {
    const cidrs: string[] = [];
    for await (const part of session.list(SERVICE_CIDRS, {})) {
      const spec = 'item' in part && isRecord(part.item) ? part.item.spec : undefined;
      const listed = isRecord(spec) && Array.isArray(spec.cidrs) ? spec.cidrs : [];
      cidrs.push(...listed.flatMap((cidr) => canonicalCidr(String(cidr)) ?? []));
    }
    return cidrs;
  });
}

async function withSession<T>(
  cluster: ClusterOptions,
  work: (session: Session) => Promise<T>,
): Promise<T> {
  const open = createOpenSession(await loadClusterConfig(cluster));
  const session = await open(new AbortController().signal);
  try {
    return await work(session);
  } finally {
    session.close();
  }
}
