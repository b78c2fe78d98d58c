import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';

const ROOT = new URL('..', import.meta.url).pathname;

/** Which folders a folder may import from, besides itself. */
const ALLOWED: Readonly<Record<string, readonly string[]>> = {
  api: [],
  programs: [],
  netlink: ['api'],
  endpoints: ['api'],
  services: ['api', 'endpoints'],
  sources: ['api'],
  proxier: ['api', 'endpoints', 'services', 'sources', 'netlink'],
  iptables: ['api', 'endpoints', 'services', 'proxier', 'programs'],
  ipvs: ['api', 'endpoints', 'services', 'proxier', 'netlink', 'iptables'],
  nftables: ['api', 'endpoints', 'services', 'proxier', 'netlink', 'iptables', 'programs'],
  policy: ['api', 'proxier', 'netlink', 'nftables', 'iptables'],
  config: ['api', 'dns', 'iptables', 'ipvs'],
  metrics: ['api'],
  envvars: ['api'],
  events: ['api'],
  dns: ['api', 'sources'],
  health: ['api', 'services', 'proxier'],
  localhost: ['api', 'services', 'proxier', 'health'],
  cmd: [
    'api',
    'config',
    'dns',
    'endpoints',
    'envvars',
    'events',
    'health',
    'iptables',
    'ipvs',
    'localhost',
    'metrics',
    'netlink',
    'nftables',
    'policy',
    'programs',
    'proxier',
    'services',
    'sources',
  ],
};

describe('imports run one way', () => {
  for (const [folder, allowed] of Object.entries(ALLOWED)) {
    it(folder, () => {
      for (const file of globSync(`${folder}/**/*.ts`, { cwd: ROOT })) {
        const text = readFileSync(join(ROOT, file), 'utf8');
        for (const [, specifier = ''] of text.matchAll(/from '(\.[^']+)'/g)) {
          const target = relative(ROOT, join(ROOT, dirname(file), specifier)).split('/')[0] ?? '';
          assert.ok(target === folder || allowed.includes(target), `${file} imports ${specifier}`);
        }
      }
    });
  }

  it('only netlink/ opens netlink sockets', () => {
    for (const file of globSync(
      '{api,cmd,config,dns,endpoints,envvars,events,health,iptables,ipvs,localhost,metrics,nftables,policy,programs,proxier,services,sources}/**/*.ts',
      { cwd: ROOT },
    )) {
      assert.doesNotMatch(readFileSync(join(ROOT, file), 'utf8'), /koffi|NetlinkSocket/, file);
    }
  });
});
