// The page works without a network after it was loaded once. The page's files are cached here by the site's version;
// bundle.js caches the bundle.
const { version, files } = /* SITE */ { version: "", files: [] };
const STORE = `edgedec-page-${version}`;

self.addEventListener("install", event => {
  event.waitUntil(caches.open(STORE).then(store => store.addAll(files)).then(() => self.skipWaiting()));
});
self.addEventListener("activate", event => {
  const old = async () => {
    for (const name of await caches.keys()) if (name.startsWith("edgedec-page-") && name !== STORE) await caches.delete(name);
    await self.clients.claim();
  };
  event.waitUntil(old());
});
/** Adds the headers for cross-origin isolation, which threads need and few servers send. @param {Response} response */
function isolated(response) {
  if (!response.status) return response;  // of a redirect, which the browser follows itself
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
self.addEventListener("fetch", event => {
  const { request } = event;
  if (request.method !== "GET" || request.headers.has("Range") || new URL(request.url).origin !== self.location.origin) return;
  event.respondWith(caches.open(STORE).then(store => store.match(request, { ignoreSearch: true })).then(kept => kept ?? fetch(request)).then(isolated));
});
