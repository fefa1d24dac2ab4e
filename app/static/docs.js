// Swagger UI, from files that are served here. Whoever has signed in can try operations at once.

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  persistAuthorization: true,
});
